"""Named steps at which a test can make the process kill itself.

Durability is a promise about the worst moment. `BATCHGEN_CRASH_AT=part_renamed` (or
`part_renamed:3` for the third time) ends the process with SIGKILL right there: no handler runs, no
buffer is flushed, exactly as if the machine's memory had run out. Without the variable a step
costs one comparison.
"""

import os
import signal
from collections.abc import Callable

VARIABLE = "BATCHGEN_CRASH_AT"

STEPS = (
    "journal_torn",
    "journal_append",
    "journal_synced",
    "journal_rotated",
    "part_writing",
    "part_written",
    "part_renamed",
    "part_published",
    "batches_written",
    "batches_renamed",
    "segment_deleted",
    "manifest_written",
    "manifest_renamed",
    "success_written",
)
"""Every step, in the order in which a run passes them first."""


def kill_self() -> None:
    """End this process as SIGKILL from outside would."""
    os.kill(os.getpid(), signal.SIGKILL)


class CrashPoints:
    """Counts down to one step; `reach` is called at each."""

    def __init__(
        self, step: str | None = None, count: int = 1, action: Callable[[], None] = kill_self
    ) -> None:
        if step is not None and step not in STEPS:
            raise ValueError(f"{VARIABLE}: no step {step!r}; there are {', '.join(STEPS)}")
        self._step = step
        self._left = count
        self._action = action

    @classmethod
    def from_environment(cls) -> "CrashPoints":
        """What `BATCHGEN_CRASH_AT` asks for; usually nothing."""
        step, _, count = os.environ.get(VARIABLE, "").partition(":")
        return cls(step or None, int(count or 1))

    def reach(self, step: str) -> None:
        """The process is at `step` now."""
        if step == self._step:
            self._left -= 1
            if self._left == 0:
                self._action()

    def awaits(self, step: str) -> bool:
        """Whether the next `reach(step)` ends the process, for steps that need a preparation."""
        return step == self._step and self._left == 1
