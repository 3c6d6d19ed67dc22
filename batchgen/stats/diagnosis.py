"""What limited a run: from its statistics to a verdict, with the evidence and the remedy.

An engine is as fast as its machine when all of its slots are in use and its steps do nothing but
multiply and read. So the time of a run is divided up. First what is lost with free slots: `feed`
(rows came too late, or in calls that drain), `tail` (the last long rows, with nothing left to put
beside them), `kv_cache` (rows waited, but there was no cache for them). Then `host`: time in which
neither arithmetic nor memory was the limit. The rest is what a machine is bought for: `prefill`
(arithmetic, all tokens of a prompt at once) and `decode` (one step per token, memory first).
The shares add up to 1; the largest comes first, and losses of a fifth or more before the rest.

What is not known decides nothing: without slots, drains or times of steps there is no verdict that
needs them. docs/diagnosis.md has the table of verdicts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from batchgen.stats.evidence import Evidence as Evidence
from batchgen.stats.evidence import evidence_of as evidence_of
from batchgen.stats.remedies import (
    decode_remedy,
    feed_remedy,
    host_remedy,
    kv_remedy,
    prefill_remedy,
    tail_remedy,
)

LOST_SHARE: Final = 0.1
"""Free slots matter from a tenth of the time on; below it is what any run begins and ends with."""
HOST_SHARE: Final = 0.15
"""The same for batchgen's own work between the steps, which is measured."""
UNEXPLAINED_SHARE: Final = 0.5
"""Real kernels reach half to nine tenths of the measured rates; only more than that is overhead."""
PREVENTABLE_SHARE: Final = 0.2
"""From here on something that could be won stands before prefill and decode, whatever they take."""
BOUND_SHARE: Final = 0.35
"""What has less of the time does not limit it."""
PREEMPTED_SHARE: Final = 0.01
"""Preempted sequences per row from which on the KV cache is too small."""
FULL_CACHE: Final = 0.7
"""Share of KV blocks from which on waiting rows wait for the cache, not for a turn of prefill."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One limit of a run."""

    kind: str
    """`prefill`, `decode`, `kv_cache`, `feed`, `host` or `tail`."""
    summary: str
    """What it is, in a few words."""
    evidence: str
    """The numbers that say so."""
    remedy: str
    """What to change, with the names of the keys."""
    share: float | None
    """Share of the time that goes this way, 0 to 1. Of free slots it is the most that filling them
    could win: a step with fewer sequences is shorter. None: not known."""


def diagnose(evidence: Evidence) -> tuple[Verdict, ...]:
    """The limits of a run, the most important one first; empty where the evidence is missing."""
    return tuple(sorted(_verdicts(evidence), key=_importance, reverse=True))


def _importance(verdict: Verdict) -> tuple[bool, float]:
    """What could be won comes before what the time is spent on, unless it is little."""
    share = PREVENTABLE_SHARE if verdict.share is None else verdict.share
    is_work = verdict.kind in ("prefill", "decode")
    return not is_work and share >= PREVENTABLE_SHARE, share


@dataclass(frozen=True, slots=True)
class _Shares:
    """The time of a run divided up; None: not known. They add up to 1 where all are known."""

    feed: float | None
    tail: float | None
    kv_cache: float | None
    host: float | None
    prefill: float | None
    decode: float | None
    is_explained: bool
    """`host` was measured, and is not merely what nothing else explains."""

    @property
    def lost(self) -> float:
        """What went by with free slots, as far as it is known."""
        return sum(share or 0.0 for share in (self.feed, self.tail, self.kv_cache))


def _verdicts(evidence: Evidence) -> Iterator[Verdict]:
    shares = _divide(evidence)
    if _is(shares.feed, LOST_SHARE):
        yield _feed(evidence, shares.feed)
    if _is(shares.tail, LOST_SHARE):
        yield _tail(evidence, shares.tail)
    if _lacks_cache(evidence, shares.kv_cache):
        yield _kv_cache(evidence, shares.kv_cache)
    if _is(shares.host, HOST_SHARE if shares.is_explained else UNEXPLAINED_SHARE):
        yield _host(evidence, shares)
    if _is(shares.prefill, BOUND_SHARE):
        yield _prefill(evidence, shares.prefill)
    if _is(shares.decode, BOUND_SHARE):
        yield _decode(evidence, shares.decode)


def _is(share: float | None, least: float) -> bool:
    return share is not None and share >= least


def _divide(evidence: Evidence) -> _Shares:
    feed, tail, kv_cache = _free_slots(evidence)
    lost = sum(share or 0.0 for share in (feed, tail, kv_cache))
    measured = _ratio(evidence.host_s, evidence.wall_s)
    unexplained = None
    if evidence.roofline_fraction is not None:
        unexplained = max(0.0, 1 - evidence.roofline_fraction - lost)
    is_explained = not _is(unexplained, UNEXPLAINED_SHARE)
    host = measured if is_explained else unexplained
    host = None if host is None else min(host, max(0.0, 1 - lost))
    rest = max(0.0, 1 - lost - (host or 0.0))
    prefill = _prefill_part(evidence)
    is_known = prefill is not None and feed is not None
    return _Shares(
        feed=feed,
        tail=tail,
        kv_cache=kv_cache,
        host=host,
        prefill=rest * (prefill or 0.0) if is_known else None,
        decode=rest * (1 - (prefill or 0.0)) if is_known else None,
        is_explained=is_explained,
    )


def _free_slots(evidence: Evidence) -> tuple[float | None, float | None, float | None]:
    """Shares of slot time that stood free: for want of rows, at the end, for want of cache.

    The three are told apart by how long each lasted.
    """
    used = _ratio(evidence.num_running_mean, evidence.slots)
    drain_s, tail_s = evidence.drain_s, evidence.tail_s
    if used is None or drain_s is None or tail_s is None:
        return None, None, None
    blocked_s = evidence.blocked_s or 0.0
    free_s = drain_s + blocked_s
    free = max(0.0, min(1 - used, _ratio(free_s, evidence.wall_s) or 0.0))
    if free_s <= 0:
        return 0.0, 0.0, 0.0 if evidence.blocked_s is not None else None
    feed_s = max(0.0, drain_s - tail_s)
    kv_cache = free * blocked_s / free_s if evidence.blocked_s is not None else None
    return free * feed_s / free_s, free * tail_s / free_s, kv_cache


def _prefill_part(evidence: Evidence) -> float | None:
    """Prefill's part of the steps: measured, else as the roofline divides them."""
    if evidence.prefill_s is not None and evidence.wall_s:
        steps_s = evidence.wall_s - (evidence.host_s or 0.0)
        return min(1.0, evidence.prefill_s / steps_s) if steps_s > 0 else None
    if evidence.bound_prefill_s is None or evidence.bound_decode_s is None:
        return None
    return _ratio(evidence.bound_prefill_s, evidence.bound_prefill_s + evidence.bound_decode_s)


def _lacks_cache(evidence: Evidence, share: float | None) -> bool:
    if _is(_ratio(evidence.num_preemptions, evidence.num_rows), PREEMPTED_SHARE):
        return True
    return _is(share, LOST_SHARE) and _is(evidence.kv_cache_usage_max, FULL_CACHE)


def _feed(evidence: Evidence, share: float | None) -> Verdict:
    drain_s, tail_s = evidence.drain_s or 0.0, evidence.tail_s or 0.0
    numbers = (
        f"slots stood free for {drain_s - tail_s:.1f} of {evidence.wall_s or 0.0:.1f} s while rows"
        f" were left, {_slots(evidence)} in use on average"
    )
    return Verdict(
        "feed",
        "the engine waits for rows",
        numbers,
        feed_remedy(
            evidence.settings,
            slots=evidence.slots,
            read_share=_ratio(evidence.read_s, evidence.wall_s),
            render_share=_ratio(evidence.render_s, evidence.wall_s),
        ),
        share,
    )


def _tail(evidence: Evidence, share: float | None) -> Verdict:
    has_few_rows = (evidence.num_rows or 0) <= (evidence.slots or 0)
    numbers = (
        f"slots stood free for {evidence.tail_s or 0.0:.1f} of {evidence.wall_s or 0.0:.1f} s"
        f" after the last row had entered, {_slots(evidence)} in use on average"
    )
    return Verdict(
        "tail",
        "too few rows to fill the slots" if has_few_rows else "the last long rows take the time",
        numbers,
        tail_remedy(evidence.settings, num_rows=evidence.num_rows, slots=evidence.slots),
        share,
    )


def _kv_cache(evidence: Evidence, share: float | None) -> Verdict:
    numbers = []
    if evidence.kv_cache_usage_max is not None:
        numbers.append(f"the KV cache was up to {evidence.kv_cache_usage_max:.0%} full")
    if evidence.num_preemptions:
        numbers.append(
            f"{evidence.num_preemptions:,} sequences lost their cache and started over"
            f" ({evidence.num_rows or 0:,} rows)"
        )
    if evidence.blocked_s:
        numbers.append(
            f"rows waited beside free slots for {evidence.blocked_s:.1f} of"
            f" {evidence.wall_s or 0.0:.1f} s, {_slots(evidence)} in use on average"
        )
    return Verdict(
        "kv_cache",
        "the KV cache holds too few sequences",
        ", ".join(numbers),
        kv_remedy(
            evidence.settings,
            num_running=evidence.num_running_mean,
            preempts=bool(evidence.num_preemptions),
        ),
        share or None,
    )


def _host(evidence: Evidence, shares: _Shares) -> Verdict:
    if shares.is_explained:
        summary = "the engine waits for this process"
        numbers = (
            f"{evidence.host_s or 0.0:.1f} of {evidence.wall_s or 0.0:.1f} s passed between the"
            " engine's steps although it had rows"
        )
    else:
        summary = "overhead of each step, neither arithmetic nor memory"
        numbers = (
            f"arithmetic and memory explain {evidence.roofline_fraction or 0.0:.0%} of the time,"
            f" free slots {shares.lost:.0%}{_step(evidence)}"
        )
    return Verdict(
        "host",
        summary,
        numbers,
        host_remedy(
            slots=evidence.slots,
            between_steps=shares.is_explained,
            write_part=_ratio(evidence.write_s, evidence.host_s),
        ),
        shares.host,
    )


def _prefill(evidence: Evidence, share: float | None) -> Verdict:
    numbers = f"prompt tokens take {_prefill_part(evidence) or 0.0:.0%} of the steps' time"
    if evidence.cached_share is not None:
        numbers += f"; {evidence.cached_share:.0%} of them came out of the prefix cache"
    return Verdict(
        "prefill",
        "prompts take the time, not outputs",
        numbers,
        prefill_remedy(evidence.settings, cached_share=evidence.cached_share),
        share,
    )


def _decode(evidence: Evidence, share: float | None) -> Verdict:
    numbers = (
        f"output tokens take {1 - (_prefill_part(evidence) or 0.0):.0%} of the steps' time,"
        f" {_slots(evidence)} in use on average{_step(evidence)}"
    )
    return Verdict(
        "decode",
        "outputs take the time, one step per token",
        numbers,
        decode_remedy(
            slots=evidence.slots,
            num_running=evidence.num_running_mean,
            critical_batch=evidence.critical_batch,
            kv_cache_usage_max=evidence.kv_cache_usage_max,
        ),
        share,
    )


def _slots(evidence: Evidence) -> str:
    return f"{evidence.num_running_mean or 0.0:.1f} of {evidence.slots or 0} slots"


def _step(evidence: Evidence) -> str:
    step_s = _ratio(evidence.wall_s, evidence.num_steps)
    return "" if step_s is None else f", {step_s * 1000:,.1f} ms a step"


def _ratio(amount: float | None, whole: float | None) -> float | None:
    return amount / whole if amount is not None and whole else None
