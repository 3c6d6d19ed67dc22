"""Dynamic batching, shown with rows that arrive one after another, as requests to a server do.

A dynamic batch closes when it is full, or when its oldest row has waited long enough; then it runs
as one call, and rows that arrive meanwhile wait for its end. A long time-out makes full batches and
long waits, a short one makes small batches. Continuous batching knows no such choice: a row enters
at the next step after its arrival. Both are given the same rows at the same moments here, and a
latency begins at the arrival.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import inf
from random import Random
from typing import Literal

from batchgen.bench.trials import Trial, measure
from batchgen.bench.workload import Workload
from batchgen.protocols import Clock, Engine
from batchgen.records import Prompt, RowKey
from batchgen.schedule.ordering import NOTHING_ELSE

Gaps = Literal["exponential", "even"]


def arrival_moments(
    num_rows: int, rows_per_s: float, *, gaps: Gaps = "exponential", seed: int = 0
) -> list[float]:
    """Seconds from the first arrival, for each row.

    Independent users make exponential gaps (a Poisson process); even ones make a metronome.

    >>> arrival_moments(3, 2.0, gaps="even")
    [0.0, 0.5, 1.0]
    """
    random = Random(seed)
    even = gaps == "even"
    steps = (1 / rows_per_s if even else random.expovariate(rows_per_s) for _ in range(1, num_rows))
    return list(accumulate(steps, initial=0.0))


def run_dynamic(
    engine: Engine,
    workload: Workload,
    batch_size: int,
    moments: Sequence[float],
    *,
    max_wait_s: float,
) -> tuple[Trial, "ArrivingRows"]:
    """Batches that close by size or time-out; the rows tell how often it was which."""
    arrivals = ArrivingRows(workload, moments, engine.clock, batch_size, max_wait_s)
    return measure("dynamic", batch_size, engine, workload, arrivals=arrivals), arrivals


def run_continuous_arriving(
    engine: Engine, workload: Workload, window: int, moments: Sequence[float]
) -> Trial:
    """Rows enter at the step after their arrival, at most `window` at once."""
    arrivals = ArrivingRows(workload, moments, engine.clock)
    return measure("continuous", window, engine, workload, arrivals=arrivals)


class ArrivingRows:
    """The rows of a workload, each not before its moment. The first one arrives now.

    A feed that has nothing else to do is kept waiting for the next row. With a `batch_size` it
    asks for the rows of one batch after the other, and gets None where the time-out closes one.
    """

    def __init__(
        self,
        workload: Workload,
        moments: Sequence[float],
        clock: Clock,
        batch_size: int | None = None,
        max_wait_s: float = inf,
    ) -> None:
        self._prompts = workload.prompts
        self._clock = clock
        self._batch_size = batch_size
        self._max_wait_s = max_wait_s
        began = clock.now()
        self._due = [began + moment for moment in moments]
        self._due_of: dict[RowKey, float] = {
            prompt.key: due for prompt, due in zip(self._prompts, self._due, strict=True)
        }
        self._next = 0
        self._num_in_batch = 0
        self._closes_at = inf
        self._waited_s = 0.0
        self.num_full = 0
        """Batches closed by their size."""
        self.num_timed_out = 0
        """Batches closed by the time-out."""

    @property
    def is_exhausted(self) -> bool:
        """All rows have been handed out."""
        return self._next >= len(self._prompts)

    @property
    def waited_s(self) -> float:
        """Seconds spent waiting for rows so far, with nothing in the engine."""
        return self._waited_s

    def arrived_at(self, prompt: Prompt) -> float:
        """When a row came in, on the engine's clock."""
        return self._due_of[prompt.key]

    def next(self, urgency: int) -> Prompt | None:
        """The next row that has arrived; None where there is none yet, or the batch is closed."""
        due = inf if self.is_exhausted else self._due[self._next]
        if due > self._clock.now():
            if urgency != NOTHING_ELSE or due > self._closes_at:
                self._close_by_time_out()
                return None
            if self.is_exhausted:
                return None
            self._wait_until(due)
        return self._take(due)

    def _take(self, due: float) -> Prompt:
        prompt = self._prompts[self._next]
        self._next += 1
        if self._batch_size is not None:
            if self._num_in_batch == 0:
                self._closes_at = due + self._max_wait_s
            self._num_in_batch += 1
            if self._num_in_batch == self._batch_size:
                self.num_full += 1
                self._open_batch()
        return prompt

    def _close_by_time_out(self) -> None:
        """Wait for the time-out of an open batch, if there is one; nobody knows what comes."""
        if self._num_in_batch:
            self._wait_until(self._closes_at)
            self.num_timed_out += 1
            self._open_batch()

    def _open_batch(self) -> None:
        self._num_in_batch, self._closes_at = 0, inf

    def _wait_until(self, moment: float) -> None:
        seconds = moment - self._clock.now()
        if seconds > 0:
            self._clock.sleep(seconds)
            self._waited_s += seconds
