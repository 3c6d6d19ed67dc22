"""Every run of a job.

A run with an orderly end has left its totals in the manifest. What is known of one that goes on, or
was killed, are its batches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from batchgen.report.arrays import Floats, floats, highest, moment_of, total, whole
from batchgen.report.records import RunLine

_ADDED_UP: Final = (
    "started_at",
    "replica",
    "wall_s",
    "num_rows",
    "num_prompt_tokens",
    "num_output_tokens",
    "num_cached_tokens",
    "num_running_mean",
    "kv_cache_usage_max",
)


@dataclass(frozen=True, slots=True)
class RunBatches:
    """What the closed batches of one run add up to."""

    started_at: str
    feed: str
    num_batches: int
    num_replicas: int
    num_rows: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int | None
    wall_s: float | None
    """Of the replica with the most."""
    num_running_mean: float | None
    kv_cache_usage_max: float | None


def run_batches(batches: pa.Table) -> dict[str, RunBatches]:
    """The batches of each run, added up; runs in the order of their batches."""
    run_ids = batches["run_id"].to_pylist()
    places: dict[str, list[int]] = {}
    for place, run_id in enumerate(run_ids):
        places.setdefault(run_id, []).append(place)
    numbers = {name: floats(batches[name]) for name in _ADDED_UP}
    feeds = batches["feed"]
    return {
        run_id: _added_up(
            {name: column[found] for name, column in numbers.items()},
            feed=feeds[found[0]].as_py(),
        )
        for run_id, found in places.items()
    }


def _added_up(columns: Mapping[str, Floats], *, feed: str) -> RunBatches:
    replicas = columns["replica"].astype(np.int64)
    walls = np.nan_to_num(columns["wall_s"])
    slot_seconds = columns["num_running_mean"] * columns["wall_s"]
    seen = np.isfinite(slot_seconds)
    seen_s = np.bincount(replicas[seen], walls[seen]).max() if seen.any() else None
    return RunBatches(
        started_at=moment_of(columns["started_at"].min()).isoformat(timespec="seconds"),
        feed=feed,
        num_batches=len(replicas),
        num_replicas=len(np.unique(replicas)),
        num_rows=int(columns["num_rows"].sum()),
        num_prompt_tokens=int(columns["num_prompt_tokens"].sum()),
        num_output_tokens=int(columns["num_output_tokens"].sum()),
        num_cached_tokens=whole(total(columns["num_cached_tokens"])),
        wall_s=float(np.bincount(replicas, walls).max()) or None,
        num_running_mean=rate(total(slot_seconds), seen_s),
        kv_cache_usage_max=highest(columns["kv_cache_usage_max"]),
    )


def run_lines(
    entries: Sequence[Mapping[str, Any]], batches: Mapping[str, RunBatches], state: str
) -> tuple[RunLine, ...]:
    """The manifest's runs, oldest first, and before them those that only batches tell of.

    `state` is that of the directory: a run that counts as running there and is not was killed.
    """
    known = {entry["run_id"] for entry in entries}
    forgotten = [
        {"run_id": run_id, "started_at": run.started_at, "feed": run.feed, "status": "unknown"}
        for run_id, run in batches.items()
        if run_id not in known
    ]
    return tuple(
        run_line(entry, batches.get(entry["run_id"]), state) for entry in (*forgotten, *entries)
    )


def run_line(entry: Mapping[str, Any], batches: RunBatches | None, state: str) -> RunLine:
    """One run, as far as it is known."""
    has_ended = entry.get("num_rows") is not None
    source: Mapping[str, Any] = entry if has_ended else _of_batches(batches)
    rows, prompt, output = (
        source.get(name) for name in ("num_rows", "num_prompt_tokens", "num_output_tokens")
    )
    generate_s = source.get("generate_s")
    start_s = (entry.get("phases") or {}).get("engine_start", 0.0)
    num_engines = batches.num_replicas if batches else 1
    return RunLine(
        run_id=entry["run_id"],
        started_at=entry.get("started_at", ""),
        ended_at=entry.get("ended_at"),
        status=_status(entry, state),
        stopped=entry.get("stopped"),
        exit_code=entry.get("exit_code"),
        feed=entry.get("feed"),
        batch_size=entry.get("batch_size"),
        num_rows=rows,
        num_prompt_tokens=prompt,
        num_output_tokens=output,
        num_cached_tokens=source.get("num_cached_tokens"),
        num_batches=batches.num_batches if batches else 0,
        wall_s=entry.get("wall_s"),
        generate_s=generate_s,
        engine_s=None if generate_s is None else (start_s + generate_s) * num_engines,
        rows_per_s=rate(rows, generate_s),
        output_tokens_per_s=rate(output, generate_s),
        total_tokens_per_s=rate(added((prompt, output)), generate_s),
        slots=_slots(entry.get("settings") or {}, num_engines),
        num_running_mean=batches.num_running_mean if batches else None,
        kv_cache_usage_max=batches.kv_cache_usage_max if batches else None,
        engine_restarts=entry.get("engine_restarts"),
        roofline_fraction=entry.get("roofline_fraction"),
        roofline_s=entry.get("roofline_s"),
        warnings=tuple(entry.get("warnings") or ()),
        settings=entry.get("settings") or {},
    )


def _status(entry: Mapping[str, Any], state: str) -> str:
    """How a run is or ended; one that did not come to write its end failed or was killed."""
    status = entry.get("status", "unknown")
    if status != "running" or state == "running":
        return str(status)
    return "killed" if entry.get("exit_code") is None else "failed"


def _slots(settings: Mapping[str, Any], num_engines: int) -> int | None:
    """Sequences that the engines of a run decode at once: what they said, else what was asked."""
    slots = settings.get("engine.max_num_seqs") or settings.get("model.max_num_seqs")
    return slots * num_engines if isinstance(slots, int) else None


def _of_batches(batches: RunBatches | None) -> dict[str, Any]:
    if batches is None:
        return {}
    return {
        "num_rows": batches.num_rows,
        "num_prompt_tokens": batches.num_prompt_tokens,
        "num_output_tokens": batches.num_output_tokens,
        "num_cached_tokens": batches.num_cached_tokens,
        "generate_s": batches.wall_s,
    }


def rate(amount: float | None, per: float | None) -> float | None:
    """`amount` ÷ `per`; None where either is not known or there is nothing to divide by."""
    return amount / per if amount is not None and per else None


def added(values: Iterable[float | None]) -> Any:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
