"""What the steps of a run's engines add up to, and what they tell about the time that passed.

After each step of an engine its counters are read once. Their growth gives the sequences per step,
the prompt tokens that were computed, and the price of one (`StepCost`); its gauges say whether
sequences had to wait although slots were free. Engines that follow each other in a run (one died)
are added up.
"""

from dataclasses import dataclass
from typing import NamedTuple

from batchgen.records import EngineStats
from batchgen.stats.step_cost import StepCost


class StepTotals(NamedTuple):
    """Sums over all steps since the beginning of the run."""

    num_steps: int = 0
    num_output_tokens: int = 0
    num_prefill_tokens: int = 0
    """Prompt tokens that were computed, not taken out of the prefix cache."""

    @property
    def num_running_mean(self) -> float | None:
        """Sequences that got a token in a step, on average; None where no step was seen."""
        return self.num_output_tokens / self.num_steps if self.num_steps else None


@dataclass(slots=True)
class _Counters:
    """An engine's counters when they were last read."""

    num_steps: int
    num_output_tokens: int
    num_prefill_tokens: int


class StepWatch:
    """Follows the engines of one run."""

    def __init__(self, num_steps: int, stats: EngineStats) -> None:
        self.cost = StepCost()
        self.totals = StepTotals()
        self._waiting_beside: int | None = None
        self.restart(num_steps, stats)

    def restart(self, num_steps: int, stats: EngineStats) -> None:
        """Another engine begins; what it has done before counts for nobody."""
        self._last = _counters(num_steps, stats)
        self._waiting_beside = None

    def has_stepped(self, num_steps: int) -> bool:
        """Whether the engine has worked since it was last followed."""
        return num_steps != self._last.num_steps

    def follow(self, num_steps: int, stats: EngineStats, seconds: float | None = None) -> None:
        """Add what the engine has done since then; `seconds` where its steps were timed."""
        now, last = _counters(num_steps, stats), self._last
        self._last = now
        grown = StepTotals(
            max(0, now.num_steps - last.num_steps),
            max(0, now.num_output_tokens - last.num_output_tokens),
            max(0, now.num_prefill_tokens - last.num_prefill_tokens),
        )
        self.totals = StepTotals(
            *(before + more for before, more in zip(self.totals, grown, strict=True))
        )
        if seconds is not None:
            self.cost.observe(
                seconds,
                num_steps=grown.num_steps,
                num_output_tokens=grown.num_output_tokens,
                num_prefill_tokens=grown.num_prefill_tokens,
            )
        is_held_back = bool(stats.num_running and stats.num_waiting)
        self._waiting_beside = stats.num_running if is_held_back else None

    def in_use(self, num_running: int, slots: int) -> tuple[int, bool]:
        """Slots in use of the `num_running` that the feed could fill, and whether rows wait beside.

        A feed knows how many rows it has given; only the engine knows how many of them its KV
        cache had no room for.
        """
        running = self._waiting_beside
        if running is None or running >= slots:
            return num_running, False
        return min(num_running, running), True


def _counters(num_steps: int, stats: EngineStats) -> _Counters:
    prompt_tokens = stats.num_prompt_tokens or 0
    return _Counters(
        num_steps, stats.num_output_tokens or 0, prompt_tokens - (stats.num_cached_tokens or 0)
    )
