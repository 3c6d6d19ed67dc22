"""Why batching gains what it gains here, and where the gain stops: as measured facts.

Batching shares one read of the weights among the sequences of a step. The gain ends where that read
is no longer what a step costs (saturation), where prefill takes the time, which batching does not
share, where slots stand empty (unequal lengths, drain), or where the KV cache holds no more
sequences. Each of these was measured on the way, so each is said with its number, also the ones
that do not limit.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Final

from batchgen.bench.comparison import Fact, WayResult
from batchgen.bench.step_law import StepLaw, StepPoint
from batchgen.bench.trials import Trial
from batchgen.bench.ways import Way
from batchgen.stats.diagnosis import Evidence, diagnose

FULL_CACHE: Final = 0.95
"""Share of KV blocks in use from which on the cache holds sequences back."""


def law_facts(law: StepLaw | None, points: Sequence[StepPoint]) -> Iterator[Fact]:
    """What the measured steps say: the asymptote, and what the last doubling brings."""
    if law is not None and law.asymptote is not None:
        largest = points[-1].num_running
        yield Fact(
            "asymptote",
            None,
            law.asymptote,
            f"a decode step of n sequences takes about {1000 * law.a_s:.3g} +"
            f" {1000 * law.b_s:.3g}·n ms, so no batch size decodes more than"
            f" 1 + a/b = {law.asymptote:.1f} times as fast as one row after another;"
            f" at {largest}, the most that was measured, the law gives {law.speedup(largest):.1f}."
            f" The law is off by {law.max_error:.0%} at most",
        )
    if len(points) > 1:
        low, high = points[-2], points[-1]
        ratio = high.step_s / low.step_s
        gain = high.num_running / low.num_running / ratio - 1
        yield Fact(
            "saturation",
            None,
            gain,
            f"a step of {high.num_running} sequences takes {ratio:.2f} times as long as one of"
            f" {low.num_running}: that increase of the batch decodes {gain:+.0%} tokens a second",
        )


def prefill_fact(sequential: Sequence[Trial]) -> Iterator[Fact]:
    """Prefill is arithmetic and gains little from company; its share bounds the gain."""
    trial = next(iter(sequential), None)
    times = [row.ttft_s for row in trial.rows] if trial is not None else []
    known = [ttft_s for ttft_s in times if ttft_s is not None]
    if trial is None or not known or len(known) < len(times):
        return
    share = sum(known) / trial.wall_s
    yield Fact(
        "prefill",
        "sequential",
        share,
        f"first tokens (prefill) take {share:.0%} of the time of sequential; long prompts are bound"
        " by arithmetic even alone and gain little from batching, decode is what gains",
    )


def length_fact(outputs: Sequence[int], sizes: Sequence[int]) -> Iterator[Fact]:
    """How much of their slots calls use that wait for their longest row, from lengths alone."""
    if not outputs or not sizes or min(outputs) == max(outputs):
        return
    used = [slot_use(outputs, size) for size in sizes]
    yield Fact(
        "lengths",
        Way("generate", sizes[-1]).label,
        used[-1],
        f"outputs have {min(outputs)} to {max(outputs)} tokens, {mean(outputs):.1f} on average;"
        f" calls of {_listed(sizes)} rows that wait for their longest one use"
        f" {_listed([f'{share:.0%}' for share in used])} of their slots",
    )


def slot_use(outputs: Sequence[int], batch_size: int) -> float:
    """Share of the slot steps of batches that produce a token, if each waits for its longest row.

    >>> slot_use([1, 3, 2, 2], 2)
    0.8
    """
    batches = [outputs[i : i + batch_size] for i in range(0, len(outputs), batch_size)]
    return sum(outputs) / sum(len(batch) * max(batch) for batch in batches)


def drain_facts(results: Sequence[WayResult]) -> Iterator[Fact]:
    """Time in which a slot was free and no row was waiting for it, of calls and of windows."""
    for name in ("generate", "continuous", "static"):
        shares = [
            (result.way, result.drain_s / result.wall_s)
            for result in results
            if result.name == name
            and result.arrival_rows_per_s is None
            and result.drain_s is not None
        ]
        if not shares:
            continue
        percents = [f"{share:.0%}" for _, share in shares]
        told = percents[:1] if len(set(percents)) == 1 else percents
        way, share = shares[-1]
        yield Fact(
            "drain",
            way.label,
            share,
            f"{name} {_listed([way.batch_size for way, _ in shares])}: slots stood free for"
            f" {_listed(told)} of the time, with no row left for them",
        )


def cache_fact(results: Sequence[WayResult], kv_cache_tokens: int | None) -> Iterator[Fact]:
    """Whether the KV cache held sequences back in the largest window."""
    seen = [r for r in results if r.kv_cache_usage_max is not None and r.name == "continuous"]
    if not seen:
        return
    result = max(seen, key=lambda result: result.batch_size)
    usage, preemptions = result.kv_cache_usage_max or 0.0, result.num_preemptions or 0
    is_limit = usage >= FULL_CACHE or preemptions > 0
    size = "" if kv_cache_tokens is None else f" of {kv_cache_tokens:,} tokens"
    yield Fact(
        "kv_cache",
        result.way.label,
        usage,
        f"{result.way.label}: the KV cache{size} was up to {usage:.0%} full,"
        f" {preemptions:g} sequences lost theirs; it was {'' if is_limit else 'not '}the limit",
    )


def roofline_fact(results: Sequence[WayResult], source: str | None) -> Iterator[Fact]:
    """How near the fastest way comes to what the machine can do."""
    result = fastest(results)
    if result is None or result.roofline_fraction is None or source is None:
        return
    yield Fact(
        "roofline",
        result.way.label,
        result.roofline_fraction,
        f"{result.way.label}: this machine needs {result.roofline_fraction:.0%} of the time for the"
        f" arithmetic and the memory reads alone ({source})",
    )


def limit_facts(results: Sequence[WayResult]) -> Iterator[Fact]:
    """What limits the fastest way of the engine, by the rules that diagnose a run."""
    result = fastest([result for result in results if result.name != "static"])
    if result is None:
        return
    has_one_tail = result.name == "continuous" or result.batch_size >= result.num_rows
    evidence = Evidence(
        wall_s=result.wall_s,
        num_rows=result.num_rows,
        slots=result.batch_size,
        num_running_mean=result.num_running_mean,
        drain_s=result.drain_s,
        tail_s=result.drain_s if has_one_tail else None,
        kv_cache_usage_max=result.kv_cache_usage_max,
        num_preemptions=None if result.num_preemptions is None else round(result.num_preemptions),
        roofline_fraction=result.roofline_fraction,
    )
    for verdict in diagnose(evidence):
        text = f"{result.way.label}: {verdict.summary}: {verdict.evidence}"
        yield Fact("limit", result.way.label, verdict.share, text)


def dynamic_facts(
    results: Sequence[WayResult], closed: Mapping[Way, tuple[int, int]]
) -> Iterator[Fact]:
    """How dynamic batches closed, (full, timed out), and what that cost each row."""
    for result in results:
        if result.way not in closed:
            continue
        num_full, num_timed_out = closed[result.way]
        num_batches = num_full + num_timed_out
        if not num_batches:
            continue
        text = (
            f"{result.way.label}: {num_batches} batches of"
            f" {result.num_rows / num_batches:.1f} rows on average, {num_full} closed by size and"
            f" {num_timed_out} by the time-out"
        )
        other = next((r for r in results if r.way == _same_arrivals(result.way)), None)
        if other is not None and result.latency_s_p50 and other.latency_s_p50:
            text += (
                f"; half of the rows were done {result.latency_s_p50:.2f} s after their arrival,"
                f" with continuous after {other.latency_s_p50:.2f} s"
            )
        yield Fact("dynamic", result.way.label, result.num_rows / num_batches, text)


def padding_fact(label: str, share: float) -> Fact:
    """What padding costs a static batch in prefill."""
    text = f"{label}: {share:.0%} of the prompt positions that it computes are padding"
    return Fact("padding", label, share, text)


def fastest(results: Sequence[WayResult]) -> WayResult | None:
    """The way with the most output tokens a second; arrivals set their own pace."""
    free = [result for result in results if result.arrival_rows_per_s is None]
    return max(free, key=lambda r: (r.output_tokens_per_s, r.name == "continuous"), default=None)


def _same_arrivals(way: Way) -> Way:
    return Way("continuous", way.batch_size, way.arrival_rows_per_s)


def _listed(values: Sequence[object]) -> str:
    """
    >>> _listed([2, 4, 16])
    '2, 4 and 16'
    """
    *head, last = map(str, values)
    return f"{', '.join(head)} and {last}" if head else last
