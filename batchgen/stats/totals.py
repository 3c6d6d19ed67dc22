"""What the batches of one run add up to, batch by batch, in constant memory."""

from dataclasses import dataclass, field
from typing import Final

from batchgen.stats.batch import BatchRecord

SUMMED: Final = (
    "drain_s",
    "tail_s",
    "blocked_s",
    "host_s",
    "read_s",
    "render_s",
    "write_s",
    "num_preemptions",
    "num_steps",
)
"""Columns whose sum is known only if each batch knows its own."""


@dataclass(slots=True)
class BatchTotals:
    """Sums over the batches in which the engine was observed; those of a killed run are not."""

    wall_s: float = 0.0
    num_rows: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int | None = None
    kv_cache_usage_max: float | None = None
    _slot_seconds: float = 0.0
    _prefill: tuple[float, float] = (0.0, 0.0)
    """Seconds of prefill, and the wall time of the batches that know theirs."""
    _sums: dict[str, float | None] = field(default_factory=dict)

    def add(self, batch: BatchRecord) -> None:
        """Count one more batch."""
        if not batch.wall_s or batch.num_running_mean is None:
            return
        self.wall_s += batch.wall_s
        self.num_rows += batch.num_rows
        self._slot_seconds += batch.wall_s * batch.num_running_mean
        self.num_prompt_tokens += batch.num_prompt_tokens
        if batch.num_cached_tokens is not None:
            self.num_cached_tokens = (self.num_cached_tokens or 0) + batch.num_cached_tokens
        if batch.kv_cache_usage_max is not None:
            self.kv_cache_usage_max = max(self.kv_cache_usage_max or 0.0, batch.kv_cache_usage_max)
        if batch.prefill_s is not None:
            prefill_s, known_s = self._prefill
            self._prefill = prefill_s + batch.prefill_s, known_s + batch.wall_s
        for name in SUMMED:
            value, before = getattr(batch, name), self._sums.get(name, 0)
            self._sums[name] = None if value is None or before is None else before + value

    @property
    def num_running_mean(self) -> float | None:
        """Slots in use, on average over the time; None where nothing was observed."""
        return self._slot_seconds / self.wall_s if self.wall_s else None

    @property
    def prefill_s(self) -> float | None:
        """Seconds of prefill, told for all batches from those that know theirs."""
        prefill_s, known_s = self._prefill
        return prefill_s * self.wall_s / known_s if known_s else None

    @property
    def cached_share(self) -> float | None:
        """Prompt tokens that came out of the prefix cache, 0 to 1."""
        if self.num_cached_tokens is None or not self.num_prompt_tokens:
            return None
        return self.num_cached_tokens / self.num_prompt_tokens

    def sum_of(self, name: str) -> float | None:
        """The sum of one of `SUMMED`; None unless every batch knows it."""
        return self._sums.get(name)
