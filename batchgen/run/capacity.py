"""A job's capacity plan: its model's size, its prompts' lengths, one device, and the time between.

Nothing of it needs an engine. The model's config.json gives its geometry, a sample of the corpus
the lengths, a table (or a measurement of this CPU) the rates. What comes out is named as what it
is: exact (bytes of a token), a bound (no engine is faster than the roofline, completions are no
longer than `max_tokens`), an estimate, or measured: a run of the job corrects the estimates.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from batchgen.capacity.fit import Fit, devices_needed, fit_memory, workspace_key
from batchgen.capacity.geometry import Geometry, geometry_of, read_config
from batchgen.capacity.hub import CONFIG, find_model_folder
from batchgen.capacity.lengths import LengthStats, length_stats
from batchgen.capacity.plan import (
    Efficiency,
    Estimate,
    Pace,
    estimate,
    pace,
    published_efficiency,
)
from batchgen.capacity.rates import Rates
from batchgen.capacity.roofline import Work, at_least_s
from batchgen.config.models import JobConfig
from batchgen.run.checking import output_bytes
from batchgen.run.engine_arguments import check_engine_arguments
from batchgen.run.expected_work import Outputs, expected_outputs, expected_work
from batchgen.run.measured import ENOUGH_ROWS, Measured, find_measured, unused_runs
from batchgen.run.prompt_lengths import PromptLengths, read_lengths
from batchgen.run.stop import parse_deadline
from batchgen.run.target import Setting, Target, choose_setting, choose_target, target_rates

SAMPLE_ROWS: Final = 1024


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What `batchgen plan` is asked beside the job."""

    config: Path | None = None
    """A config.json (or its directory) to plan for instead of the job's model."""
    device: str | None = None
    memory_bytes: int | None = None
    price: float | None = None
    """Of one device for an hour."""
    deadline: str | None = None
    output_tokens: int | None = None
    """Tokens of a completion, where the user knows better than `max_tokens`."""
    max_rows: int = SAMPLE_ROWS
    """Rows to look at."""
    tokens: bool = True
    """Whether a tokenizer may be loaded."""


@dataclass(frozen=True, slots=True)
class Model:
    """The model that is planned for, and how an engine would run it."""

    config: Mapping[str, Any]
    folder: Path | None
    """Where its files may be; None: the config alone is known."""
    geometry: Geometry
    setting: Setting
    max_model_len: int | None


@dataclass(frozen=True, slots=True)
class Timing:
    """What the rates of the device make of the work. None: not known, or it does not fit."""

    rates: Rates | None = None
    pace: Pace | None = None
    efficiency: Efficiency | None = None
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """Everything that was found out. None: not known."""

    job: JobConfig
    options: PlanOptions
    target: Target
    model: Model
    lengths: PromptLengths
    outputs: Outputs
    fit: Fit
    work: Work | None
    timing: Timing
    measured: Measured | None
    deadline_s: float | None
    notes: tuple[str, ...] = ()
    """What came up on the way."""

    @property
    def stats(self) -> LengthStats | None:
        """Lengths of the sample's prompts; None without prompts."""
        return length_stats(self.lengths.prompts)

    @property
    def num_devices_needed(self) -> int | None:
        """The fewest devices that hold the model, where those of the job do not; None: they do."""
        return _devices_needed(self.model, self.target, self.fit)

    @property
    def output_bytes(self) -> int | None:
        """Roughly what the run writes; as much as `outputs` is a bound, a bound."""
        if self.outputs.mean is None:
            return None
        lengths = self.lengths
        tokens_per_row = self.outputs.mean * lengths.num_completions
        return output_bytes(self.job, lengths.shards, lengths.num_rows, tokens_per_row)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What should be looked at, sentences."""
        return (
            *self.notes,
            *self.model.geometry.notes,
            *self.lengths.warnings,
            *_fit_warnings(self.model, self.target, self.fit),
            *_engine_warnings(self.job),
            *_measured_warnings(self.measured, self.timing),
        )


def plan_job(job: JobConfig, options: PlanOptions) -> CapacityPlan:
    """Plan a job's capacity. Loads a tokenizer, never an engine.

    Raises JobFileError and DataError where the model's config.json, or the input, cannot be used,
    UsageError for options that mean nothing, EngineError where this CPU was asked for and cannot be
    measured.
    """
    deadline_s = _deadline_s(options.deadline)
    target, notes = choose_target(options.device, options.memory_bytes)
    model = _read_model(job, options, target)
    lengths = _read_lengths(job, options, model)
    measured = find_measured(job) if options.config is None else None
    unused: Iterable[str] = ()
    if measured is None:
        unused = unused_runs(job, is_other_model=options.config is not None)
    outputs, sequences = expected_outputs(lengths, options.output_tokens, measured)
    work = expected_work(lengths, sequences, model.geometry, model.setting.limits, measured)
    fit = fit_memory(
        model.geometry,
        target.memory_bytes,
        model.setting.limits,
        sequences,
        max_model_len=model.max_model_len,
    )
    timing, problems = _timing(model, target, fit, work, measured, options, deadline_s)
    return CapacityPlan(
        job=job,
        options=options,
        target=target,
        model=model,
        lengths=lengths,
        outputs=outputs,
        fit=fit,
        work=work,
        timing=timing,
        measured=measured,
        deadline_s=deadline_s,
        notes=(*notes, *problems, *unused),
    )


def _deadline_s(text: str | None) -> float | None:
    if text is None:
        return None
    now = datetime.now().astimezone()
    return (parse_deadline(text, now) - now).total_seconds()


def _read_model(job: JobConfig, options: PlanOptions, target: Target) -> Model:
    if options.config is None:
        folder: Path | None = find_model_folder(
            job.model.name, job.model.revision, may_download=True
        )
        path, name = Path(folder or "", CONFIG), job.model.name
    else:
        path = options.config / CONFIG if options.config.is_dir() else options.config
        folder, name = path.parent if path.name == CONFIG else None, str(options.config)
    config = read_config(path)
    geometry = geometry_of(job.model, config, name=name, folder=folder)
    check_engine_arguments(job, geometry, on_cpu=target.kind == "cpu")
    max_model_len = job.model.max_model_len or geometry.max_model_len
    setting = choose_setting(job.model, target, config, max_model_len=max_model_len)
    if setting.dtype is not None:
        geometry = geometry_of(job.model, config, name=name, folder=folder, dtype=setting.dtype)
    return Model(config, folder, geometry, setting, max_model_len)


def _read_lengths(job: JobConfig, options: PlanOptions, model: Model) -> PromptLengths:
    return read_lengths(
        job,
        max_model_len=model.max_model_len,
        max_rows=options.max_rows,
        tokens=options.tokens,
        folder=model.folder if options.config is not None else None,
    )


def _timing(
    model: Model,
    target: Target,
    fit: Fit,
    work: Work | None,
    measured: Measured | None,
    options: PlanOptions,
    deadline_s: float | None,
) -> tuple[Timing, list[str]]:
    """What the device makes of the work, and why it is not known where it is not."""
    limits = model.setting.limits
    rates, problems = target_rates(
        target, model.setting, model.geometry, is_asked=options.device is not None
    )
    found = None
    if rates is not None and work is not None:
        found = pace(model.geometry, rates, fit, limits, work)
    if rates is None or work is None or found is None:
        return Timing(rates), problems
    if measured is not None and not is_comparable(measured, target):
        measured = None
    efficiency = (
        measured_efficiency(model.geometry, rates, measured)
        if measured is not None
        else published_efficiency(
            found.bound.total_s, work.num_output_tokens, on_cpu=target.kind == "cpu"
        )
    )
    result = estimate(
        found.bound.total_s,
        efficiency,
        num_devices=limits.num_devices,
        price=options.price,
        deadline_s=deadline_s,
        start_s=0.0 if measured is None else measured.start_s,
    )
    return Timing(rates, found, efficiency, result), problems


def is_comparable(measured: Measured, target: Target) -> bool:
    """Whether a run was made on a device like the one that is planned for."""
    if measured.is_cpu is None:
        return True
    return target.is_here and measured.is_cpu == (target.kind == "cpu")


def measured_efficiency(geometry: Geometry, rates: Rates, measured: Measured) -> Efficiency:
    """The roofline of what a run did, over the time that it took."""
    share = at_least_s(geometry, rates, measured.work).total_s / measured.took_s
    return Efficiency(
        share, share, f"measured by the {measured.what} in {measured.path}", is_measured=True
    )


def _devices_needed(model: Model, target: Target, fit: Fit) -> int | None:
    """How many devices would hold the model and its longest sequence, where those here do not."""
    if target.memory_bytes is None or target.kind == "cpu" or not _is_too_small(fit):
        return None
    longest = model.max_model_len or 1
    return devices_needed(model.geometry, target.memory_bytes, model.setting.limits, longest)


def _is_too_small(fit: Fit) -> bool:
    return fit.kv_cache_bytes <= 0 or fit.max_concurrent_at_max_len == 0


def _fit_warnings(model: Model, target: Target, fit: Fit) -> Iterator[str]:
    free = model.setting.available_bytes
    if free is not None and model.geometry.weight_bytes + fit.kv_cache_bytes > free:
        yield (
            f"weights and KV cache take {(fit.weight_bytes + fit.kv_cache_bytes) / 1e9:,.1f} GB,"
            f" and {free / 1e9:,.1f} GB are free on this machine"
        )
    if not _is_too_small(fit):
        return
    number = model.setting.limits.num_devices
    where = target.name if number == 1 else f"{number} x {target.name}"
    what = "one sequence" if fit.kv_cache_bytes <= 0 else f"{model.max_model_len:,} tokens"
    if fit.kv_cache_bytes <= 0 and fit.workspace_bytes > fit.weight_bytes:
        key, value = workspace_key(model.geometry, model.setting.limits)
        size = f"{fit.workspace_bytes / 1e9:,.1f} GB of workspace for {value:,} {key}"
        yield f"{where}: {size} leave no room for {what}: vLLM would not start; lower it"
        return
    size = f"{model.geometry.weight_bytes / 1e9:,.1f} GB of weights"
    needed = _devices_needed(model, target, fit)
    remedy = "use a larger device, or a smaller or quantized model"
    if needed is not None and needed > number:
        remedy = f"set model.extra.tensor_parallel_size to {needed}, or use a larger device"
    if fit.kv_cache_bytes > 0:
        remedy = f"lower model.max_model_len, or {remedy}"
    yield f"{where}: {size} leave no room for {what}: vLLM would not start; {remedy}"


def _engine_warnings(job: JobConfig) -> Iterator[str]:
    for key in ("speculative_config", "data_parallel_size", "cpu_offload_gb"):
        if job.model.extra.get(key) not in (None, 0, 1):
            yield f"{job.where(f'model.extra.{key}')}: the plan leaves it out"


def _measured_warnings(measured: Measured | None, timing: Timing) -> Iterator[str]:
    if measured is None or timing.efficiency is None:
        return
    if not timing.efficiency.is_measured:
        lengths = "the lengths of its completions are used, " if measured.output_mean else ""
        yield f"{measured.path} was measured on another device: {lengths}its speed is not used"
    elif measured.work.num_rows < ENOUGH_ROWS:
        yield (
            f"the {measured.what} in {measured.path} had {measured.work.num_rows} rows only: its"
            " speed says little about a long run"
        )
