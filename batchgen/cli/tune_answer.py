"""What `batchgen tune` says: a table of points, and what follows from them."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from batchgen.bench.sweep_points import rate, seconds
from batchgen.config.masking import masked_override

if TYPE_CHECKING:
    from batchgen.bench.proposals import Proposal
    from batchgen.bench.recommendation import Autoscaler, LimitAnswer, Recommendation
    from batchgen.bench.sweep_points import SweepPoint
    from batchgen.bench.tune_report import TuneReport

HEADS: Final = (
    "in flight",
    "rows/s",
    "tokens/s",
    "spread",
    "ttft p50 / p95",
    "tpot p50 / p95",
    "latency p50 / p95",
    "KV cache",
    "preempted",
    "",
)


def table_rows(report: "TuneReport") -> Iterator[tuple[str, ...]]:
    """A row for each point."""
    for point in report.points:
        yield (
            f"{point.num_running:,}",
            rate(point.rows_per_s),
            rate(point.output_tokens_per_s),
            "" if point.spread is None else f"{point.spread:.1%}",
            both(point.ttft_s_p50, point.ttft_s_p95),
            both(point.tpot_s_p50, point.tpot_s_p95),
            both(point.latency_s_p50, point.latency_s_p95),
            "?" if point.kv_cache_usage_max is None else f"{point.kv_cache_usage_max:.0%}",
            "?" if point.num_preemptions is None else f"{point.num_preemptions:,}",
            ", ".join(marks(point, report.recommended)),
        )


def marks(point: "SweepPoint", found: "Recommendation | None") -> Iterator[str]:
    """What there is to say of this point."""
    if found is not None:
        names = (
            ("best", found.best),
            ("knee", found.knee),
            ("best under the limit", found.under_latency),
        )
        yield from (name for name, number in names if number == point.num_running)
    if point.kv_limited:
        yield "KV cache full"
    if point.engine_start > 1:
        yield "after a restart"


def facts(report: "TuneReport") -> Iterator[tuple[str, str]]:
    """What follows from the points, by name."""
    found = report.recommended
    if found is None:
        return
    points = {point.num_running: point for point in report.points}
    yield "best", in_words(points[found.best])
    yield "knee", in_words(points[found.knee])
    for limit in found.limits:
        yield f"under {limit.text}", _under(limit, found, points.get(found.under_latency or 0))
    if report.noise is not None:
        yield "noise", f"throughputs that differ by less than {report.noise:.1%} are the same"
    if found.autoscaler is not None:
        yield from _scaling(found.autoscaler)
    for proposal in report.proposals:
        yield "restart" if proposal.key != "batch.order" else "order", _proposed(proposal)


def in_words(point: "SweepPoint") -> str:
    """A point on one line."""
    latency = point.latency_s_p95
    seen = "" if latency is None else f", latency p95 {seconds(latency)}"
    rates = f"{rate(point.rows_per_s)} rows/s, {rate(point.output_tokens_per_s)} output tokens/s"
    return f"{point.num_running:,} in flight: {rates}{seen}"


def run_line(job: str, given: Iterable[str], overrides: Iterable[str]) -> str:
    """The run with everything that is recommended, to copy; secrets that were given are masked."""
    shown = (*map(masked_override, given), *overrides)
    words = [word for override in shown for word in ("-s", override)]
    return shlex.join(["batchgen", "run", job, *words])


def _under(limit: "LimitAnswer", found: "Recommendation", point: "SweepPoint | None") -> str:
    if point is not None:
        return in_words(point)
    if limit.lowest_s is None:
        return "not known: the engine does not tell these times"
    lowest = f"{seconds(limit.lowest_s)}, with {limit.lowest_num_running:,} in flight"
    if limit.lowest_s > limit.limit_s:
        return f"none of the points; the lowest value seen is {lowest}"
    return f"no point keeps all limits; the lowest value of this one is {lowest}"


def _scaling(scaler: "Autoscaler") -> Iterator[tuple[str, str]]:
    target, half = scaler.target_num_running, scaler.scale_down_below
    yield (
        "autoscaler",
        f"target {target:,} requests in flight per replica: one more replica when all are at"
        f" {target:,}, one less when the mean is under {half:g}",
    )
    if scaler.replicas is not None and scaler.arrival_rate is not None:
        yield (
            "replicas",
            f"{scaler.replicas:,} for {scaler.arrival_rate:g} rows/s, each at"
            f" {scaler.utilization:.0%} of its {rate(scaler.rows_per_s)} rows/s",
        )


def _proposed(proposal: "Proposal") -> str:
    head = f"{proposal.override} (now {proposal.was}): {proposal.reason}"
    if proposal.gain is None:
        return f"{head}; not measured, --restart does" if _needs_engine(proposal) else head
    verdict = "pays" if proposal.pays else "is no gain beyond the noise"
    return f"{head}; measured, {proposal.gain:+.1%} throughput, it {verdict}"


def _needs_engine(proposal: "Proposal") -> bool:
    return proposal.key.startswith("model.")


def both(middle: float | None, high: float | None) -> str:
    """Median and 95th percentile in one cell."""
    if middle is None or high is None:
        return "?"
    return f"{seconds(middle)} / {seconds(high)}"


def changes_of(overrides: Sequence[str]) -> dict[str, int | str]:
    """Dotted keys and values of overrides.

    >>> changes_of(["model.max_num_seqs=48", "batch.order=prefix"])
    {'model.max_num_seqs': 48, 'batch.order': 'prefix'}
    """
    pairs = (override.partition("=") for override in overrides)
    return {key: int(text) if text.isdecimal() else text for key, _, text in pairs}
