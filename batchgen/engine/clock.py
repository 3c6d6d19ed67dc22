"""Two clocks: the machine's, and one that jumps.

Everything in batchgen that waits or measures is given a clock. On the simulated one a sleep
takes no time, and calls that are due every so often happen on the way, at the very moment they
are due, also in the middle of one long engine step. So a test of an eight-hour night, of a stall or
of a deadline is exact and ends at once.
"""

import heapq
import threading
import time
from collections.abc import Callable
from itertools import count


class RealClock:
    """Seconds of the machine's monotonic clock; periodic calls come from a thread each."""

    def now(self) -> float:
        """Seconds since an arbitrary moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the caller for `seconds`."""
        time.sleep(seconds)

    def every(self, period_s: float, action: Callable[[], None]) -> Callable[[], None]:
        """Call `action` from a daemon thread each `period_s` until the result is called.

        The result waits for a call that is under way (unless it is that call which stops itself).
        """
        stopped = threading.Event()

        def repeat() -> None:
            while not stopped.wait(period_s):
                action()

        thread = threading.Thread(target=repeat, name="clock-every", daemon=True)
        thread.start()

        def stop() -> None:
            stopped.set()
            if thread is not threading.current_thread():
                thread.join()

        return stop


class SimulatedClock:
    """A clock that stands still until someone sleeps on it. For one thread.

    >>> clock = SimulatedClock()
    >>> stop = clock.every(60, lambda: print("minute", int(clock.now() / 60)))
    >>> clock.sleep(150)
    minute 1
    minute 2
    >>> clock.now()
    150.0
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._due: list[tuple[float, int, float, Callable[[], None]]] = []
        self._numbers = count()
        self._stopped: set[int] = set()

    def now(self) -> float:
        """Seconds since the clock's start."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass; whatever is due on the way is called at its moment."""
        if seconds < 0:
            raise ValueError(f"cannot sleep {seconds} s: time never goes back")
        end = self._now + seconds
        while self._due and self._due[0][0] <= end:
            moment, number, period_s, action = heapq.heappop(self._due)
            if number in self._stopped:
                self._stopped.discard(number)
                continue
            self._now = max(self._now, moment)
            heapq.heappush(self._due, (moment + period_s, number, period_s, action))
            action()
        self._now = max(self._now, end)

    advance = sleep

    def every(self, period_s: float, action: Callable[[], None]) -> Callable[[], None]:
        """Call `action` each `period_s` of simulated time until the result is called."""
        if period_s <= 0:
            raise ValueError(f"a period must be positive, is {period_s}")
        number = next(self._numbers)
        heapq.heappush(self._due, (self._now + period_s, number, period_s, action))
        return lambda: self._stopped.add(number)
