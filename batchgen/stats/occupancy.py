"""How full the engine was: slots in use over time, and time in which slots stood empty.

An engine decodes at most `slots` sequences at once. `drain_s` is the time in which a slot was free
and no row was waiting for one: the tail of a batch, or a feed that is too slow. It is what
continuous feeding removes, hence it is measured for every feed: step by step where the feed sees
the steps, and from the engine's own time stamps where one call runs a whole batch. The part of it
that no feed can help, after the last row has entered the engine, is `tail_s`. `blocked_s` is the
opposite: rows were waiting, and the engine could not use its free slots for them.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Occupancy:
    """Integrals over a stretch of time, in seconds and slot seconds."""

    slots: int
    observed_s: float = 0.0
    slot_seconds: float = 0.0
    drain_s: float = 0.0
    tail_s: float = 0.0
    blocked_s: float = 0.0

    def add(
        self, seconds: float, num_running: int, num_waiting: int, *, is_tail: bool = False
    ) -> None:
        """`seconds` have passed with so many sequences running and waiting.

        `is_tail`: the last row of the run has entered the engine.
        """
        self.observed_s += seconds
        self.slot_seconds += seconds * num_running
        if num_running >= self.slots:
            return
        if num_waiting:
            self.blocked_s += seconds
            return
        self.drain_s += seconds
        if is_tail:
            self.tail_s += seconds

    def add_call(self, intervals: Iterable[tuple[float, float]], *, is_tail: bool = False) -> None:
        """One engine call that began when its first sequence was scheduled.

        `intervals` are (scheduled, finished) times of its sequences, on one clock. All rows of a
        call wait from its start, so a row counts as waiting until it is scheduled.
        """
        spans = sorted(intervals)
        if not spans:
            return
        events = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
        running, waiting = 0, len(spans)
        previous = events[0][0]
        for moment, change in events:
            self.add(moment - previous, running, waiting, is_tail=is_tail)
            previous = moment
            running += change
            waiting -= change == 1

    @property
    def num_running_mean(self) -> float | None:
        """Slots in use on average; None when nothing was observed."""
        return self.slot_seconds / self.observed_s if self.observed_s else None
