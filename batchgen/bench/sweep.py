"""The sweep: which concurrencies are measured, how often, and when it is enough.

Three stretches, all on one engine, in which a window of n rows stands for a server with n clients:

1. **climb**: 1, 2, 4, 8 ... rows in flight, each measured once, as a doubling that pays shows at
   first sight. One that seems to gain little is repeated, in turn with the best one so far, until
   the noise is known; two in a row whose gain is inside it end the climb.
2. **refine**: half-way points beside those that will have a name (best, knee, best under a limit).
3. **confirm**: these, and all that come close to the best, are repeated in turn, on a noisy
   machine twice as often.

Repeats are interleaved, since a machine that gets slower for a minute should not make one point
look slow. Before each trial its time is estimated from the trials before; one that would not be
over within the budget is left out and named.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import median
from typing import Final

from batchgen.bench.latency_limit import LatencyLimit
from batchgen.bench.recommendation import SAME, best_point, knee_point, within
from batchgen.bench.steady import LEAST_ROWS, Steady, measure_steady, rows_needed
from batchgen.bench.sweep_points import SweepPoint, point_of, rate, seconds
from batchgen.bench.sweep_rows import SweepRows
from batchgen.config.stop_early import StopEarlyConfig
from batchgen.monitor.console import Console
from batchgen.protocols import Engine
from batchgen.schedule.feeds import Stop

DOUBTFUL_GAIN: Final = 0.10
"""A gain below this may be noise, so it is measured again."""
FLAT_POINTS: Final = 2
"""So many points in a row without gain end the climb."""
CLOSE: Final = 0.03
"""Points so close to the best, or inside the noise, are repeated as often as it. If the noise is
larger than this, they are repeated twice as often."""
DOUBTFUL_LOSS: Final = 0.2
"""A point that was tried once and is no further below the best than this is tried again: on a
shared machine single trials are off by that much."""
FINE_STEP: Final = 1.34
"""Neighbors whose concurrencies differ by no more than this factor need nothing in between."""
LIMIT_ROWS: Final = 40
"""Rows behind a latency that is held against a limit: the p95 of fewer is nearly their maximum."""
WARM_UP: Final = 8
"""Rows in flight while the engine warms up."""
TRIAL_S: Final = 5.0
"""Trials last at least so long where the sample has rows enough: a shorter one is all hiccups."""
TRIALS: Final = 60
"""In a small budget trials are shorter, so that about so many fit into it."""


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """How far a sweep goes."""

    most_running: int
    """The engine's slots."""
    repeats: int
    budget_s: float
    limits: tuple[LatencyLimit, ...] = ()


class Sweep:
    """Measures points on one engine. Stopped in the middle, it still has the points so far."""

    def __init__(
        self,
        engine: Engine,
        rows: SweepRows,
        settings: SweepSettings,
        *,
        stop: Stop,
        rules: StopEarlyConfig,
        console: Console,
    ) -> None:
        self._engine = engine
        self._rows = rows
        self._settings = settings
        self._stop = stop
        self._rules = rules
        self._console = console
        self._ends_at = engine.clock.now() + settings.budget_s
        self._trials: dict[int, list[Steady]] = {}
        self.left_out: list[int] = []
        """Concurrencies that were to be measured (once more), had there been time."""
        self.flat_from: int | None = None
        """From this concurrency on nothing was gained; None where the climb ended otherwise."""
        self.is_rising = True
        """Whether the climb has not seen its end: the last doubling measured gained something, and
        there are larger ones."""
        self.last_tried = 0

    def run(self) -> None:
        """Warm up, climb, refine, confirm."""
        num_running = min(WARM_UP, self._settings.most_running)
        prompts = self._rows.take(max(LEAST_ROWS, 2 * num_running + 2))
        warm_up = measure_steady(self._engine, prompts, num_running, self._stop, self._rules)
        self._rows.learn(warm_up.lengths)
        self._climb()
        self._refine()
        self._confirm()

    def measure(self, num_running: int) -> bool:
        """One more trial of this point; False where there is no time for it."""
        if not self.has_time(num_running):
            if num_running not in self.left_out:
                self.left_out.append(num_running)
            return False
        self.last_tried = num_running
        prompts = self._rows.take(self._rows_for(num_running))
        trial = measure_steady(self._engine, prompts, num_running, self._stop, self._rules)
        self._rows.learn(trial.lengths)
        self._trials.setdefault(num_running, []).append(trial)
        self._console.line(self._line(trial))
        return True

    def has_time(self, num_running: int, num_trials: int = 1) -> bool:
        """Whether so many trials of this point would be over in time; the first one always is."""
        if not self._trials:
            return True
        expected_s = num_trials * self._expected_s(num_running)
        return self._engine.clock.now() + expected_s <= self._ends_at

    def repeat(self, numbers: Sequence[int], repeats: int | None = None) -> None:
        """Trials of these points in turn, until each has its repeats or the time is over."""
        repeats = repeats or self._settings.repeats
        for _ in range(repeats):
            for number in numbers:
                missing = len(self._trials.get(number, ())) < repeats
                if missing and not self.measure(number):
                    return

    def points(self) -> list[SweepPoint]:
        """What has been measured so far, by concurrency."""
        tokens_per_row = self._rows.tokens_per_row
        return [point_of(trials, tokens_per_row) for _, trials in sorted(self._trials.items())]

    def point(self, num_running: int) -> SweepPoint:
        """One of the points."""
        return point_of(self._trials[num_running], self._rows.tokens_per_row)

    @property
    def noise(self) -> float:
        """Differences of throughput up to this share say nothing.

        The median over points of spread ÷ √repeats: what repeats are taken for is that their median
        is closer to the truth than each of them.
        """
        repeated = [point for point in self.points() if point.spread is not None]
        noises = [(point.spread or 0.0) / sqrt(point.num_repeats) for point in repeated]
        return max(SAME, median(noises)) if noises else SAME

    def _climb(self) -> None:
        num_flat = 0
        for number in doublings(self._settings.most_running):
            before = self._best_so_far()
            if not self.measure(number):
                return
            num_flat = num_flat + 1 if before is not None and self._is_flat(number, before) else 0
            self.is_rising = num_flat == 0 and number < self._settings.most_running
            if num_flat == FLAT_POINTS:
                self.flat_from = before
                return

    def _best_so_far(self) -> int | None:
        points = self.points()
        if not points:
            return None
        return max(points, key=lambda point: point.output_tokens_per_s).num_running

    def _is_flat(self, number: int, before: int) -> bool:
        """Whether `number` rows in flight gain nothing over the best of the fewer ones."""
        if self._gain(number, before) < DOUBTFUL_GAIN:
            self.repeat((before, number))
        return self._gain(number, before) <= self.noise

    def _gain(self, number: int, before: int) -> float:
        return self.point(number).output_tokens_per_s / self.point(before).output_tokens_per_s - 1

    def _refine(self) -> None:
        for number in between(self.points(), self._settings.limits):
            self.measure(number)

    def _confirm(self) -> None:
        self._settle(self._settings.repeats)
        if self.noise > CLOSE:
            self._settle(2 * self._settings.repeats)

    def _settle(self, repeats: int) -> None:
        """Repeat the points that the recommendation hangs on, as long as that brings up others."""
        while contenders := self._contenders(repeats):
            self.repeat(contenders, repeats)

    def _contenders(self, repeats: int) -> list[int]:
        """Points with a name or close to the best that have fewer repeats, and time for more."""
        points = self.points()
        best = max(point.output_tokens_per_s for point in points)
        margin = max(CLOSE, self.noise)
        once = max(margin, DOUBTFUL_LOSS)
        close = [
            point
            for point in points
            if point.output_tokens_per_s
            >= (1 - (once if point.num_repeats == 1 else margin)) * best
        ]
        wanted = {point.num_running for point in (*close, *named(points, self._settings.limits))}
        return [
            number
            for number in sorted(wanted)
            if len(self._trials[number]) < repeats and number not in self.left_out
        ]

    def _rows_for(self, num_running: int) -> int:
        """Rows of a trial: as many as have to be, more where that would be over in no time."""
        if num_running in self._trials:
            return self._trials[num_running][0].num_rows
        least, fewer = self._least_rows(num_running), self._nearest(num_running)
        if fewer is None:
            return least
        wanted_s = min(TRIAL_S, self._settings.budget_s / TRIALS)
        return max(least, min(int(fewer.rows_per_s_in_all * wanted_s), len(self._rows)))

    def _least_rows(self, num_running: int) -> int:
        """Rows that the middle of a trial needs; for a limit so many that a p95 says something."""
        least = rows_needed(num_running)
        return max(least, LIMIT_ROWS + 2 * num_running) if self._settings.limits else least

    def _nearest(self, num_running: int) -> Steady | None:
        """The latest trial with as many rows in flight or, else, with the most of those below."""
        known = [number for number in self._trials if number <= num_running]
        return self._trials[max(known)][-1] if known else None

    def _expected_s(self, num_running: int) -> float:
        """Seconds of a trial, at most: as slow for each row as the nearest one with fewer."""
        trial = self._nearest(num_running) or self._trials[min(self._trials)][-1]
        return self._rows_for(num_running) / trial.rows_per_s_in_all

    def _line(self, trial: Steady) -> str:
        latency_s = trial.middle.latency_s_p95
        seen = "" if latency_s is None else f", latency p95 {seconds(latency_s)}"
        repeats = len(self._trials[trial.num_running])
        again = f" (repeat {repeats})" if repeats > 1 else ""
        speed = f"{rate(trial.output_tokens_per_s)} output tokens/s"
        took = f"{trial.num_rows:,} rows took {seconds(trial.total_s)}"
        return f"{trial.num_running:,} in flight: {speed}{seen}; {took}{again}"


def doublings(most: int) -> Iterator[int]:
    """Powers of two below `most`, then `most`.

    >>> list(doublings(48))
    [1, 2, 4, 8, 16, 32, 48]
    """
    number = 1
    while number < most:
        yield number
        number *= 2
    yield most


def named(points: Sequence[SweepPoint], limits: Sequence[LatencyLimit]) -> list[SweepPoint]:
    """Best, knee, and the best under the limits."""
    allowed = within(points, limits) if limits else []
    under = best_point(allowed) if allowed else None
    others = [best_point(points), knee_point(points)]
    return others if under is None else [under, *others]


def between(points: Sequence[SweepPoint], limits: Sequence[LatencyLimit]) -> list[int]:
    """Concurrencies half-way between a point with a name and its neighbors, where these are far.

    With limits also half-way to the lowest concurrency that breaks one.
    """
    names = {point.num_running for point in named(points, limits)}
    measured = [point.num_running for point in points]
    allowed = {point.num_running for point in within(points, limits)}
    gaps = [
        (low, high)
        for low, high in pairwise(measured)
        if high > FINE_STEP * low
        and ({low, high} & names or (limits and low in allowed and high not in allowed))
    ]
    return [(low + high) // 2 for low, high in gaps if low < (low + high) // 2]
