"""Why a run ends before its last row: a signal, a deadline, the error budget.

A first SIGINT, SIGTERM or SIGHUP asks for an orderly end: no new row, everything finished is
saved. Python delivers signals between two instructions of the main thread, so a feed that goes
around its loop every step only needs a flag. A call that lasts minutes (a model that loads, a whole
batch in `LLM.generate`) declares itself `interruptible`, and then the handler raises out of it.
A second signal ends the process at once.

A deadline works in the same way, by an interval timer on the real clock and by comparison on a
simulated one.
"""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import FrameType

from batchgen.errors import UsageError
from batchgen.protocols import Clock

EXIT_OF_SIGNAL = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
DEADLINE_EXIT = 7
BUDGET_EXIT = 6


class StopRun(BaseException):
    """The run ends here, in good order.

    No Exception, like KeyboardInterrupt: it may be raised inside a library that catches those.
    With `lets_finish` it ends the feeding alone: rows in flight are waited for.
    """

    def __init__(
        self, reason: str, exit_code: int, closed_by: str, *, lets_finish: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.exit_code = exit_code
        self.closed_by = closed_by
        self.lets_finish = lets_finish


class StopWatch:
    """Signals and the deadline of one run; a context manager around it."""

    def __init__(
        self, clock: Clock, deadline_s: float | None = None, *, uses_timer: bool = True
    ) -> None:
        self._clock = clock
        self._deadline_at = None if deadline_s is None else clock.now() + deadline_s
        self._timer_s = deadline_s if uses_timer else None
        self._pending: StopRun | None = None
        self._is_interruptible = False
        self._previous: dict[signal.Signals, object] = {}
        self._on_second: Callable[[], None] = lambda: None

    def __enter__(self) -> "StopWatch":
        if _is_main_thread():
            for number in (*EXIT_OF_SIGNAL, signal.SIGALRM):
                self._previous[number] = signal.signal(number, self._handle)
            if self._timer_s is not None:
                signal.setitimer(signal.ITIMER_REAL, max(self._timer_s, 0.001))
        return self

    def __exit__(self, *exc: object) -> None:
        if _is_main_thread() and self._previous:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in self._previous.items():
                signal.signal(number, handler)  # type: ignore[arg-type]
            self._previous = {}

    def on_second_signal(self, action: Callable[[], None]) -> None:
        """Call this before the process ends at once (to end engine processes)."""
        self._on_second = action

    def request(self, stop: StopRun) -> None:
        """End the run at the next check; the first reason counts, unless a later one waits less."""
        pending = self._pending
        if pending is None or (pending.lets_finish and not stop.lets_finish):
            self._pending = stop

    @property
    def ends_feeding(self) -> bool:
        """Whether no new row may enter the engine."""
        return self._pending is not None

    def check(self, num_in_flight: int = 0) -> None:
        """Raise StopRun if the run has to end, with so many rows that may be waited for."""
        if self._deadline_at is not None and self._clock.now() >= self._deadline_at:
            self.request(_deadline_stop())
        if self._pending is not None and not (num_in_flight and self._pending.lets_finish):
            raise self._pending

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A long call: a signal raises StopRun out of it instead of waiting for its end."""
        self.check()
        self._is_interruptible = True
        try:
            yield
        finally:
            self._is_interruptible = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        if received is signal.SIGALRM:
            stop = _deadline_stop()
        elif self._pending is not None and self._pending.closed_by == "signal":
            self._on_second()
            os._exit(EXIT_OF_SIGNAL[received])
        else:
            stop = StopRun(f"stopped by {received.name}", EXIT_OF_SIGNAL[received], "signal")
        self.request(stop)
        if self._is_interruptible:
            self._is_interruptible = False
            raise stop


def _deadline_stop() -> StopRun:
    return StopRun("stopped at the deadline, rows are left", DEADLINE_EXIT, "deadline")


def _is_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()


_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2})")


def parse_deadline(text: str, now: datetime) -> datetime:
    """The moment meant by `06:00` (the next such time of day) or `8h`, `1h30m`, `45m`, `90s`.

    >>> parse_deadline("06:00", datetime(2026, 3, 1, 22, 0))
    datetime.datetime(2026, 3, 2, 6, 0)
    >>> parse_deadline("1h30m", datetime(2026, 3, 1, 22, 0))
    datetime.datetime(2026, 3, 1, 23, 30)
    """
    time_of_day = _TIME_OF_DAY.fullmatch(text.strip())
    if time_of_day:
        hour, minute = int(time_of_day[1]), int(time_of_day[2])
        if hour > 23 or minute > 59:
            raise UsageError(f"--deadline: '{text}' is no time of day; write it as 06:00")
        moment = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return moment if moment > now else moment + timedelta(days=1)
    duration = _DURATION.fullmatch(text.strip())
    if duration is None or not any(duration.groups()):
        raise UsageError(
            f"--deadline: '{text}' is neither a time of day (06:00) nor a duration (8h, 1h30m, 90s)"
        )
    hours, minutes, seconds = (float(part or 0) for part in duration.groups())
    if not hours + minutes + seconds:
        raise UsageError(f"--deadline: '{text}' is over at once; give a duration above 0")
    try:
        return now + timedelta(hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError as exc:
        raise UsageError(f"--deadline: '{text}' is beyond any calendar; leave it out") from exc
