"""What a prompt token costs, told from the steps of a running engine.

A step lasts longer the more it does: a fixed part, a part for each sequence that gets a token,
and a part for each prompt token that it computes. How much prefill takes is therefore known without
looking inside: the durations of steps, regressed on these three counts, give the price of a prompt
token. Engines spread a long prompt over several steps and count it in the last one, so a few
steps are taken together, and what they hold is looked at as a whole.
"""

from collections.abc import Sequence
from typing import Final

GROUP_STEPS: Final = 8
"""Steps that are taken together."""
LEAST_GROUPS: Final = 6
"""Fewer say nothing: three prices are to be told apart."""
LEAST_VARIATION: Final = 1e-3
"""Of a count, what the counts before it do not explain; below that it cannot be told from them."""


class StepCost:
    """Sums over all steps so far: the memory does not grow with them."""

    def __init__(self) -> None:
        self._groups = _Products()
        self._singles = _Products()
        self._open = [0.0, 0.0, 0.0, 0.0]

    def observe(
        self,
        seconds: float,
        *,
        num_steps: int,
        num_output_tokens: int,
        num_prefill_tokens: int,
    ) -> None:
        """The engine has taken `num_steps` steps in `seconds`, with so many tokens in them."""
        counts = [num_steps, num_output_tokens, num_prefill_tokens, seconds]
        self._singles.add(counts)
        self._open = [before + count for before, count in zip(self._open, counts, strict=True)]
        if self._open[0] >= GROUP_STEPS:
            self._groups.add(self._open)
            self._open = [0.0, 0.0, 0.0, 0.0]

    @property
    def prefill_token_s(self) -> float | None:
        """Seconds that one more prompt token costs; None where the steps do not tell yet.

        Single steps are asked where groups are all alike, as with outputs of one length.
        """
        if self._groups.num_observed < LEAST_GROUPS:
            return None
        price_s = self._groups.price()
        return self._singles.price() if price_s is None else price_s


class _Products:
    """Products of (steps, output tokens, prefill tokens, seconds) with each other, summed."""

    def __init__(self) -> None:
        self.num_observed = 0
        self._sums = [[0.0] * 4 for _ in range(4)]

    def add(self, counts: Sequence[float]) -> None:
        """One observation."""
        self.num_observed += 1
        for line, left in zip(self._sums, counts, strict=True):
            for place, right in enumerate(counts):
                line[place] += left * right

    def price(self) -> float | None:
        """Seconds per prefill token by least squares; None where it cannot be told from the rest.

        Steps and output tokens are taken out first (Frisch, Waugh and Lovell), as they hang
        together as long as all slots are in use.
        """
        sums = [list(line) for line in self._sums]
        for place in (0, 1):
            if sums[place][place] > LEAST_VARIATION * self._sums[place][place]:
                _take_out(sums, place)
        if sums[2][2] <= LEAST_VARIATION * self._sums[2][2]:
            return None
        return max(0.0, sums[2][3] / sums[2][2])


def _take_out(sums: list[list[float]], place: int) -> None:
    """Subtract from all others what the count at `place` explains of them."""
    own = list(sums[place])
    for line in sums:
        factor = line[place] / own[place]
        for column in range(4):
            line[column] -= factor * own[column]
