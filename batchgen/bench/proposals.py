"""Settings that a sweep on one engine cannot try out, and what speaks for trying them.

The number of rows in flight can be varied while an engine runs, and so can their order. The number
of slots and the tokens of a step are fixed at its start. For these a sweep has evidence at best:
throughput still grew at the last slot, or steps were full. So a proposal is a guess with its
reason until a restarted engine has measured it (`--restart`); `gain` is null until then.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from batchgen.bench.recommendation import best_point
from batchgen.bench.sweep_points import KV_FULL, SweepPoint
from batchgen.engine.prefix_cache import PrefixCache
from batchgen.records import EngineInfo, Prompt

WORTH_SLOTS: Final = 1.25
"""Fewer slots than this factor more are not worth a restart."""
FULL_STEP: Final = 0.5
"""Steps that compute this share of `max_num_batched_tokens` on average are often full."""
WORTH_SHARE: Final = 0.02
"""Of the prompt tokens; an order that saves less is not proposed."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One key of the job with another value."""

    key: str
    value: Any
    was: Any
    reason: str
    gain: float | None = None
    """Measured: throughput with the value ÷ without it - 1. None: not measured."""
    pays: bool | None = None
    """Whether the gain is beyond the noise. None: not measured."""

    @property
    def override(self) -> str:
        """As `-s` takes it."""
        return f"{self.key}={self.value}"

    def measured(self, gain: float, noise: float) -> "Proposal":
        """The same with what a measurement gave."""
        return replace(self, gain=gain, pays=gain > noise)


def more_slots(
    points: Sequence[SweepPoint],
    chosen: SweepPoint,
    *,
    slots: int,
    sequences_per_row: int,
    noise: float,
) -> Proposal | None:
    """More slots, where all are recommended, the last ones paid, and the KV cache has room."""
    most = slots // sequences_per_row
    before = [point for point in points if point.num_running <= most / 2]
    if chosen.num_running != most or not before or chosen.kv_limited:
        return None
    gain = chosen.output_tokens_per_s / best_point(before).output_tokens_per_s - 1
    usage = chosen.kv_cache_usage_max
    factor = min(2.0, KV_FULL / usage) if usage else 2.0
    if gain <= noise or factor < WORTH_SLOTS:
        return None
    room = "" if usage is None else f", and the KV cache was {usage:.0%} full"
    return Proposal(
        key="model.max_num_seqs",
        value=int(most * factor) * sequences_per_row,
        was=slots,
        reason=f"{most:,} in flight, all that the engine takes, still gained {gain:.0%}{room}",
    )


def larger_steps(
    point: SweepPoint, prompts: Iterable[Prompt], settings: Mapping[str, Any]
) -> Proposal | None:
    """More tokens a step, where steps are often full or a prompt does not fit into one."""
    budget = settings.get("max_num_batched_tokens")
    if not isinstance(budget, int):
        return None
    longest = max(len(prompt.token_ids) for prompt in prompts)
    if longest > budget:
        reason = f"the longest prompt of the sample, {longest:,} tokens, is cut into several steps"
    elif point.tokens_per_step is not None and point.tokens_per_step >= FULL_STEP * budget:
        reason = (
            f"a step computed {point.tokens_per_step:,.0f} tokens on average, {budget:,} at most"
        )
    else:
        return None
    return Proposal("model.extra.max_num_batched_tokens", 2 * budget, budget, reason)


def prefix_order(
    point: SweepPoint,
    prompts: Sequence[Prompt],
    *,
    order: str,
    info: EngineInfo,
) -> Proposal | None:
    """Rows ordered by their prompts, where that takes more of them from the prefix cache.

    `prompts` are those of the point, in the order `prefix`.
    """
    block_tokens = info.kv_block_tokens
    has_cache = info.settings.get("prefix_caching", True)
    if order == "prefix" or not has_cache or block_tokens is None or point.cached_share is None:
        return None
    possible = cached_share(prompts, block_tokens, info.kv_cache_tokens)
    if possible < point.cached_share + WORTH_SHARE:
        return None
    return Proposal(
        key="batch.order",
        value="prefix",
        was=order,
        reason=f"in this order {possible:.0%} of the sample's prompt tokens are in the prefix cache"
        f" (blocks of {block_tokens}); now {point.cached_share:.0%} were",
    )


def cached_share(prompts: Sequence[Prompt], block_tokens: int, cache_tokens: int | None) -> float:
    """Share of the prompt tokens that a prefix cache serves if rows come one after another."""
    cache = PrefixCache(block_tokens, cache_tokens)
    num_cached = sum(cache.take_in(list(prompt.token_ids)) for prompt in prompts)
    return num_cached / max(1, sum(len(prompt.token_ids) for prompt in prompts))
