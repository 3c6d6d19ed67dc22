"""Notices an engine that hangs: alive by all signs, and getting nothing done.

A feed that waits inside the engine cannot look at a clock, so a periodic call looks at the
engine's count of steps instead. After `stall_timeout` without a step the engine is interrupted,
which turns the hang into an ordinary death that recovery survives. An engine that runs inside this
process may be beyond any interruption; then finished rows are made durable and the process
ends with the engine's exit code, so that cron or systemd can start it again.
"""

import os
from collections.abc import Callable

from batchgen.errors import EngineError
from batchgen.monitor.console import Console, json_line
from batchgen.protocols import Clock
from batchgen.run.recovery import EngineKeeper

GRACE_S = 30.0
"""From the interruption to the end of the process."""
_LOOKS = 8
"""Looks per timeout: a stall is noticed at most an eighth late."""


class StallWatch:
    """A context manager around a feed. `timeout_s` None: no watch."""

    def __init__(
        self,
        keeper: EngineKeeper,
        clock: Clock,
        timeout_s: float | None,
        *,
        give_up: Callable[[str], None],
    ) -> None:
        self._keeper = keeper
        self._clock = clock
        self._timeout_s = timeout_s
        self._give_up = give_up
        self._mark: tuple[int, int] = (0, 0)
        self._since = clock.now()
        self._interrupted_at: float | None = None
        self._cancel: Callable[[], None] = lambda: None

    def __enter__(self) -> "StallWatch":
        if self._timeout_s is not None:
            self._since = self._clock.now()
            self._cancel = self._clock.every(self._timeout_s / _LOOKS, self._look)
        return self

    def __exit__(self, *exc: object) -> None:
        self._cancel()

    def _look(self) -> None:
        engine = self._keeper.engine
        now = self._clock.now()
        if engine is None or self._timeout_s is None:
            self._since, self._interrupted_at = now, None
            return
        mark = (id(engine), engine.num_steps)
        if mark != self._mark or not engine.num_unfinished:
            self._mark, self._since, self._interrupted_at = mark, now, None
            return
        silence = f"no step for {now - self._since:.0f} s"
        if self._interrupted_at is not None:
            if now - self._interrupted_at >= GRACE_S:
                self._give_up(f"the engine hangs and cannot be ended: {silence}")
        elif now - self._since >= self._timeout_s:
            self._interrupted_at = now
            self._keeper.interrupt(f"{silence} (errors.stall_timeout is {self._timeout_s:g} s)")


def end_process(reason: str, console: Console) -> None:
    """Say why on stderr and end at once with the engine's exit code.

    It is written past the console, whose stream the thread that hangs may have locked.
    """
    text = f"{reason}; finished rows are saved, the same command continues"
    is_json = console.log_format == "json"
    line = json_line("error", text, console.run_id) if is_json else f"error: {text}"
    os.write(2, f"{line}\n".encode())
    os._exit(EngineError.exit_code)
