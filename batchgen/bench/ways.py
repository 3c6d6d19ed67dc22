"""The ways in which the same rows go through the same engine, and how long each will take.

    sequential      one call a row
    generate n      one call for n rows, which waits for the longest of them
    continuous n    n rows in flight; a row that finishes makes room for the next one
    dynamic n       rows arrive; a batch closes by size or time-out, and is one call
    static n        a padded batch of Hugging Face transformers

Sequential generation is slow, that being the point. How slow is known after a warm-up, so the time
that a comparison takes can be said before it begins. Where that is more than the user has, the
slowest ways get fewer rows, spread over the sample; their rates are those of these rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from batchgen.bench.step_law import StepPoint

SIZE_FACTOR: Final = 4
LEAST_ROWS: Final = 4
"""A rate from fewer rows says little, however long they take."""
NUM_STATIC_SIZES: Final = 2


@dataclass(frozen=True, slots=True)
class Way:
    """One way of batching. Ways with an arrival rate have rows that come one after another."""

    name: str
    """`sequential`, `generate`, `continuous`, `dynamic` or `static`."""
    batch_size: int
    """Rows of a call, or most rows in flight."""
    arrival_rows_per_s: float | None = None

    @property
    def label(self) -> str:
        """What tables and messages call it.

        >>> Way("dynamic", 16, 2.5).label
        'dynamic 16 at 2.5/s'
        """
        if self.name == "sequential":
            return self.name
        rate = "" if self.arrival_rows_per_s is None else f" at {self.arrival_rows_per_s:g}/s"
        return f"{self.name} {self.batch_size}{rate}"


def default_sizes(limit: int) -> tuple[int, ...]:
    """2, then 4 and each time four times as much, up to the limit and with it.

    >>> default_sizes(64), default_sizes(100), default_sizes(1)
    ((2, 4, 16, 64), (2, 4, 16, 64, 100), ())
    """
    sizes = [2, SIZE_FACTOR]
    while sizes[-1] * SIZE_FACTOR <= limit:
        sizes.append(sizes[-1] * SIZE_FACTOR)
    return tuple(sorted({size for size in (*sizes, limit) if 2 <= size <= limit}))


def engine_ways(sizes: Sequence[int], arrival_rows_per_s: float | None) -> tuple[Way, ...]:
    """The ways that one started engine goes through, from one row at a time to the largest size."""
    calls = [Way("generate", size) for size in sizes]
    windows = [Way("continuous", size) for size in sizes]
    arriving: list[Way] = []
    if arrival_rows_per_s is not None:
        largest = max(sizes, default=1)
        arriving = [Way(name, largest, arrival_rows_per_s) for name in ("dynamic", "continuous")]
    return (Way("sequential", 1), *calls, *windows, *arriving)


def static_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """The largest sizes: padded batches are slow, and small ones tell nothing more."""
    return tuple(sorted(sizes)[-NUM_STATIC_SIZES:])


@dataclass(frozen=True, slots=True)
class Pace:
    """What the engine needs for a step and for a prompt token, roughly, from a warm-up."""

    points: tuple[StepPoint, ...]
    """By rising number of sequences, at least one."""
    prefill_token_s: float

    def step_s(self, num_running: float) -> float:
        """Seconds of a step, on a line between measured points and in proportion beyond them."""
        first, last = self.points[0], self.points[-1]
        if num_running <= first.num_running:
            return first.step_s
        for low, high in pairwise(self.points):
            if num_running <= high.num_running:
                share = (num_running - low.num_running) / (high.num_running - low.num_running)
                return low.step_s + share * (high.step_s - low.step_s)
        return last.step_s * num_running / last.num_running

    def predict_s(self, way: Way, lengths: Sequence[tuple[int, int]]) -> float:
        """Seconds for rows of so many (prompt, output) tokens, all there from the beginning."""
        prefill_s = self.prefill_token_s * sum(prompt for prompt, _ in lengths)
        outputs = [output for _, output in lengths]
        if way.name == "continuous":
            size = min(way.batch_size, len(outputs))
            return prefill_s + sum(outputs) / size * self.step_s(size)
        starts = range(0, len(outputs), way.batch_size)
        calls = [sorted(outputs[start : start + way.batch_size]) for start in starts]
        return prefill_s + sum(self._call_s(call) for call in calls)

    def _call_s(self, outputs: Sequence[int]) -> float:
        """Steps of one call, from all of its rows down to its longest one alone."""
        done, seconds = 0, 0.0
        for index, length in enumerate(outputs):
            seconds += (length - done) * self.step_s(len(outputs) - index)
            done = length
        return seconds


def row_shares(predicted_s: Mapping[Way, float], budget_s: float) -> dict[Way, float]:
    """The share of the rows that each way can do, 0 to 1, so that all together fit the budget.

    Only the slowest are cut, all to one time.

    >>> seconds = {Way("sequential", 1): 60, Way("generate", 4): 20, Way("generate", 16): 5}
    >>> [round(share, 2) for share in row_shares(seconds, budget_s=45).values()]
    [0.33, 1.0, 1.0]
    """
    most_s = _ceiling(sorted(predicted_s.values()), budget_s)
    return {way: min(1.0, most_s / max(s, 1e-12)) for way, s in predicted_s.items()}


def _ceiling(ascending: Sequence[float], budget_s: float) -> float:
    """The time that no way may exceed: water filled up to the budget."""
    left = budget_s
    for index, seconds in enumerate(ascending):
        equal_share = max(0.0, left) / (len(ascending) - index)
        if seconds > equal_share:
            return equal_share
        left -= seconds
    return max(ascending, default=0.0)


def num_rows_of(way: Way, num_rows: int, share: float) -> int:
    """Rows that a way does of `num_rows`: whole batches, and never too few to say anything.

    >>> num_rows_of(Way("generate", 16), 64, 0.3), num_rows_of(Way("sequential", 1), 64, 0.01)
    (32, 4)
    """
    if share >= 1:
        return num_rows
    wanted = max(LEAST_ROWS, round(share * num_rows))
    return min(num_rows, -(-wanted // way.batch_size) * way.batch_size)
