"""The points of a sweep: what the repeats at one concurrency say together.

Repeats are put together by their median, which a single hiccup of the machine does not move, and
`spread` says how far apart they were.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import TYPE_CHECKING, Final

from batchgen.bench.steady import Steady

if TYPE_CHECKING:
    import pyarrow as pa

KV_FULL: Final = 0.9
"""A KV cache of which so much is in use does not hold another doubling of what runs in it."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """The engine with `num_running` rows in flight. Seconds; None: the engine does not tell."""

    num_running: int
    num_repeats: int
    num_rows: int
    """Rows of each repeat, those of its start and end included."""
    num_failed: int
    rows_per_s: float
    """`output_tokens_per_s` ÷ the output tokens of a row, averaged over all rows of the sweep."""
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    spread: float | None
    """(largest - smallest) ÷ median of the repeats' throughput; None with a single one."""
    ttft_s_p50: float | None
    ttft_s_p95: float | None
    tpot_s_p50: float | None
    tpot_s_p95: float | None
    latency_s_p50: float | None
    latency_s_p95: float | None
    cached_share: float | None
    """Share of the prompt tokens of a trial that came from the prefix cache."""
    tokens_per_step: float | None
    kv_cache_usage_max: float | None
    num_preemptions: int | None
    """Of the repeat that had the most."""
    kv_limited: bool | None
    """Rows were preempted, or the KV cache was (nearly) full."""
    engine_start: int = 1
    """Which start of the engine it was measured in."""


def points_schema() -> "pa.Schema":
    """Arrow schema of `tune.parquet`, in the order of the record's fields."""
    import pyarrow as pa

    counts = {"num_running", "num_repeats", "num_rows", "num_failed", "num_preemptions"}

    def arrow_type(name: str) -> pa.DataType:
        if name == "kv_limited":
            return pa.bool_()
        return pa.int64() if name in {*counts, "engine_start"} else pa.float64()

    return pa.schema([(field.name, arrow_type(field.name)) for field in fields(SweepPoint)])


def point_of(
    trials: Sequence[Steady], tokens_per_row: float | None, *, engine_start: int = 1
) -> SweepPoint:
    """The repeats of one concurrency as a point. Repeats with fewer rows than the others count not.

    `tokens_per_row` None: that of these rows.
    """
    num_rows = max(trial.num_rows for trial in trials)
    repeats = [trial for trial in trials if trial.num_rows == num_rows]
    middles = [trial.middle for trial in repeats]
    rates = [trial.output_tokens_per_s for trial in repeats]
    tokens_per_s = median(rates)
    usage = _most(middle.kv_cache_usage_max for middle in middles)
    preemptions = _most(middle.num_preemptions for middle in middles)
    return SweepPoint(
        num_running=repeats[0].num_running,
        num_repeats=len(repeats),
        num_rows=num_rows,
        num_failed=max(trial.num_failed for trial in repeats),
        rows_per_s=tokens_per_s / (tokens_per_row or _tokens_per_row(repeats)),
        output_tokens_per_s=tokens_per_s,
        prompt_tokens_per_s=median(middle.prompt_tokens_per_s for middle in middles),
        spread=spread_of(rates),
        ttft_s_p50=_median(middle.ttft_s_p50 for middle in middles),
        ttft_s_p95=_median(middle.ttft_s_p95 for middle in middles),
        tpot_s_p50=_median(middle.tpot_s_p50 for middle in middles),
        tpot_s_p95=_median(middle.tpot_s_p95 for middle in middles),
        latency_s_p50=_median(middle.latency_s_p50 for middle in middles),
        latency_s_p95=_median(middle.latency_s_p95 for middle in middles),
        cached_share=_median(trial.cached_share for trial in repeats),
        tokens_per_step=_median(trial.tokens_per_step for trial in repeats),
        kv_cache_usage_max=usage,
        num_preemptions=None if preemptions is None else int(preemptions),
        kv_limited=_is_kv_limited(usage, preemptions),
        engine_start=engine_start,
    )


def spread_of(values: Sequence[float]) -> float | None:
    """(largest - smallest) ÷ median; None for a single value.

    >>> spread_of([9.0, 10.0, 12.0])
    0.3
    """
    return (max(values) - min(values)) / median(values) if len(values) > 1 else None


def rate(value: float) -> str:
    """Something per second, with three digits at least.

    >>> rate(0.51234), rate(12.345), rate(12870.4)
    ('0.512', '12.3', '12,870')
    """
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def seconds(value: float) -> str:
    """A duration with its unit.

    >>> seconds(0.0123), seconds(2.345), seconds(75.2), seconds(1234.5)
    ('12.3 ms', '2.35 s', '75.2 s', '1,234 s')
    """
    if value < 0.1:
        return f"{1000 * value:.3g} ms"
    return f"{value:.3g} s" if value < 100 else f"{value:,.0f} s"


def _is_kv_limited(usage: float | None, preemptions: float | None) -> bool | None:
    if usage is None and preemptions is None:
        return None
    return bool(preemptions) or (usage is not None and usage >= KV_FULL)


def _tokens_per_row(repeats: Sequence[Steady]) -> float:
    lengths = [length for trial in repeats for length in trial.lengths.values()]
    return sum(lengths) / len(lengths)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
