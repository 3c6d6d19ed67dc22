"""What limited a run: how far it was from what the machine can do, and why.

The roofline is the least time that this machine needs for what was computed, from the model's
geometry and from two measured rates (`capacity/`). It is told of every run with a real engine.
Where it cannot be told, the log says why, and the run is none the worse: nothing in here fails it.
The rates are measured after the engine has been closed, once per machine; who asked the run to stop
does not wait for that.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from batchgen.capacity.devices import device_of_driver
from batchgen.capacity.geometry import Geometry, load_geometry
from batchgen.capacity.rates import Rates, known_rates, measured_rates
from batchgen.capacity.roofline import Bound, Work, at_least_s, critical_batch
from batchgen.config.models import JobConfig, ModelConfig
from batchgen.engine.vllm_settings import is_cpu_build
from batchgen.errors import BatchgenError, DataError, EngineError
from batchgen.monitor.logs import LOGGER_NAME
from batchgen.records import EngineInfo
from batchgen.run.doctor import find_gpus
from batchgen.stats.diagnosis import Verdict, diagnose
from batchgen.stats.evidence import evidence_of_totals
from batchgen.stats.remedies import Settings

if TYPE_CHECKING:
    from batchgen.run.execution import Outcome

THREADS: Final = "OMP_NUM_THREADS"
logger = logging.getLogger(LOGGER_NAME)


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least time for the work of a run, on the machine that did it."""

    bound: Bound
    fraction: float
    """Least time ÷ time that it took."""
    source: str
    """The rates and where they come from."""
    critical_batch: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What `run` says about its own speed."""

    roofline: Roofline | None = None
    verdicts: tuple[Verdict, ...] = ()

    @property
    def diagnosis(self) -> tuple[Mapping[str, Any], ...]:
        """The verdicts as plain values."""
        return tuple(asdict(verdict) for verdict in self.verdicts)


def find_limits(job: JobConfig, outcome: "Outcome") -> Limits:
    """The roofline and the diagnosis of what an execution has done."""
    engine = outcome.engine
    if engine is None or not outcome.counts.generated:
        return Limits()
    roofline = _roofline(job.model, engine, outcome)
    evidence = evidence_of_totals(
        outcome.totals,
        slots=engine.max_num_seqs,
        settings=Settings.of_job(job.model_dump(mode="json")),
        roofline_fraction=None if roofline is None else roofline.fraction,
        bound_prefill_s=None if roofline is None else roofline.bound.prefill_s,
        bound_decode_s=None if roofline is None else roofline.bound.decode_s,
        critical_batch=None if roofline is None else roofline.critical_batch,
    )
    return Limits(roofline, diagnose(evidence))


def _roofline(model: ModelConfig, engine: EngineInfo, outcome: "Outcome") -> Roofline | None:
    """None where there is none, or where it cannot be told; then the log says why."""
    if engine.name != "vllm":
        return None
    try:
        work = _work(model, outcome)
        dtype = str(engine.settings["dtype"])
        geometry = load_geometry(model, dtype=dtype)
        may_measure = outcome.stopped is None or outcome.stopped.closed_by != "signal"
        rates = machine_rates(geometry, engine, outcome.cpus, may_measure=may_measure)
        found = _against(geometry, rates, work, outcome.generate_s)
        if found.fraction > 1 and may_measure:
            # Nothing beats the roofline: the rates were measured while something else ran.
            rates = machine_rates(geometry, engine, outcome.cpus, again=True)
            found = _against(geometry, rates, work, outcome.generate_s)
        return found
    except BatchgenError as problem:
        logger.info("roofline not known: %s", problem)
    except Exception:  # a number beside the rows must not cost the run its orderly end
        logger.exception("roofline not known")
    return None


def _work(model: ModelConfig, outcome: "Outcome") -> Work:
    counts, num_running_mean = outcome.counts, outcome.steps.num_running_mean
    if model.extra.get("speculative_config") or model.extra.get("speculative_model"):
        raise DataError("speculative decoding makes several tokens a step, which it does not count")
    if counts.cached_tokens is None or num_running_mean is None or outcome.generate_s <= 0:
        raise DataError("the engine tells neither its steps nor its cached tokens")
    return Work(
        num_rows=counts.generated,
        num_prompt_tokens=counts.prompt_tokens,
        num_cached_tokens=counts.cached_tokens,
        num_output_tokens=counts.output_tokens,
        num_running_mean=num_running_mean,
        num_sequences=counts.sequences,
    )


def _against(geometry: Geometry, rates: Rates, work: Work, took_s: float) -> Roofline:
    bound = at_least_s(geometry, rates, work)
    return Roofline(
        bound=bound,
        fraction=bound.total_s / took_s,
        source=str(rates),
        critical_batch=critical_batch(geometry, rates),
    )


def num_devices(engine: EngineInfo) -> int:
    """Devices that share one copy of the model."""
    return int(engine.settings.get("tensor_parallel_size") or 1)


def machine_rates(
    geometry: Geometry,
    engine: EngineInfo,
    cpus: Sequence[int],
    *,
    may_measure: bool = True,
    again: bool = False,
) -> Rates:
    """The rates of the devices that `engine` runs on, for this model's products.

    Measured, now or earlier (`may_measure` false: only earlier). On a GPU the data sheet stands in
    where they cannot be measured, as for products of 8 bits. Raises a BatchgenError where no rate
    is known. `cpus` are the cores of the process before an engine bound it.
    """
    dtype = str(engine.settings["dtype"])
    if is_cpu_build():
        if geometry.matmul_dtype != dtype:
            raise DataError(f"the rate of {geometry.matmul_dtype} products is not measured")
        threads = int(os.environ.get(THREADS) or len(cpus))
        if may_measure:
            return measured_rates(dtype, threads, cpus=cpus, again=again)
        return known_rates(dtype, threads, cpus=cpus)
    return _gpu_rates(geometry, may_measure, again).times(num_devices(engine))


def _gpu_rates(geometry: Geometry, may_measure: bool, again: bool) -> Rates:
    try:
        if may_measure:
            return measured_rates(geometry.matmul_dtype, None, device="cuda", again=again)
        return known_rates(geometry.matmul_dtype, None, device="cuda")
    except EngineError:
        name = next(iter(find_gpus()), "").partition(",")[0]
        device = device_of_driver(name)
        if device is None:
            raise
        return device.rates(geometry.matmul_dtype)
