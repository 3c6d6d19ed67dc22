"""The totals of a report: what the output holds, and what all runs took to make it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from batchgen.output.counts import Counts
from batchgen.report.arrays import floats, highest, total, whole
from batchgen.report.records import Cost, EarlyStop, PrefixCache, RunLine, Summary
from batchgen.report.runs import added, rate


def summarize(
    totals: Counts,
    progress: Mapping[str, Any],
    lines: Sequence[RunLine],
    batches: pa.Table,
    *,
    state: str,
) -> Summary:
    """Totals over all runs; rates are rows and tokens of all runs ÷ their seconds of generation."""
    is_done = state == "done"
    timed = [line for line in lines if line.generate_s and line.num_rows is not None]
    generate_s = added(line.generate_s for line in timed)
    output_tokens = added(line.num_output_tokens for line in timed)
    prompt_tokens = added(line.num_prompt_tokens for line in timed)
    return Summary(
        num_rows=totals.num_rows,
        num_ok=totals.num_ok,
        num_failed=totals.num_failed,
        num_duplicates=totals.num_duplicates,
        num_cut=totals.num_cut,
        num_invalid_json=totals.num_invalid_json,
        rows_total=totals.num_rows if is_done else progress.get("rows_total"),
        total_is_estimate=not is_done and bool(progress.get("total_is_estimate")),
        eta_s=progress.get("eta_s") if state == "running" else None,
        num_prompt_tokens=totals.num_prompt_tokens,
        num_output_tokens=totals.num_output_tokens,
        num_cached_tokens=totals.num_cached_tokens,
        num_runs=len(lines),
        num_batches=batches.num_rows,
        wall_s=added(line.wall_s for line in lines),
        generate_s=generate_s,
        engine_s=added(line.engine_s for line in lines),
        rows_per_s=rate(added(line.num_rows for line in timed), generate_s),
        output_tokens_per_s=rate(output_tokens, generate_s),
        total_tokens_per_s=rate(added((prompt_tokens, output_tokens)), generate_s),
        slots=_common_slots(lines),
        num_running_mean=_mean_running(timed),
        drain_s=total(floats(batches["drain_s"])),
        kv_cache_usage_max=highest(floats(batches["kv_cache_usage_max"])),
        num_preemptions=whole(total(floats(batches["num_preemptions"]))),
        roofline_fraction=lines[-1].roofline_fraction if lines else None,
    )


def prefix_cache(totals: Counts, manifest: Mapping[str, Any]) -> PrefixCache:
    """What shared beginnings and equal prompts saved, over the whole output."""
    return PrefixCache(
        num_prompt_tokens=totals.num_prompt_tokens,
        num_cached_tokens=totals.num_cached_tokens,
        cached_share=rate(totals.num_cached_tokens, totals.num_prompt_tokens),
        kv_block_tokens=(manifest.get("engine") or {}).get("kv_block_tokens"),
        num_duplicates=totals.num_duplicates,
    )


def early_stop(
    manifest: Mapping[str, Any], stopped_by: Mapping[str, int], batches: pa.Table
) -> EarlyStop | None:
    """What the rules of `stop_early` did; None where there are none."""
    rules = (manifest.get("job") or {}).get("stop_early") or {}
    rules = {name: value for name, value in rules.items() if value not in (None, False)}
    if not rules and not stopped_by:
        return None
    saved = floats(batches["num_saved_tokens_max"])
    return EarlyStop(rules, sum(stopped_by.values()), dict(stopped_by), whole(total(saved)))


def cost_of(summary: Summary, price_per_hour: float | None) -> Cost | None:
    """What all runs cost; None without a price, or before an engine has worked."""
    if price_per_hour is None or summary.engine_s is None:
        return None
    cost = price_per_hour * summary.engine_s / 3600
    return Cost(
        price_per_hour=price_per_hour,
        engine_s=summary.engine_s,
        cost=cost,
        cost_per_1000_rows=rate(1e3 * cost, summary.num_rows),
        cost_per_million_output_tokens=rate(1e6 * cost, summary.num_output_tokens),
    )


def _common_slots(lines: Sequence[RunLine]) -> int | None:
    slots = {line.slots for line in lines}
    return slots.pop() if len(slots) == 1 else None


def _mean_running(lines: Sequence[RunLine]) -> float | None:
    """Slots in use over all runs, each weighted by its seconds."""
    known = [line for line in lines if line.num_running_mean is not None]
    running = [(line.num_running_mean or 0.0) * (line.generate_s or 0.0) for line in known]
    return rate(added(running), added(line.generate_s for line in known))
