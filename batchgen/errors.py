"""What can go wrong, and the exit code that says so.

    BatchgenError              1   unexpected
    ├── UsageError             2   the command line
    ├── JobFileError           3   the job file
    ├── DataError              4   input shards, output directory, disk
    │   └── ResumeMismatch     4   the output was made by another job
    ├── EngineError            5   the engine cannot start, or died too often
    │   ├── EngineNotInstalled 5
    │   └── EngineDied         5   one death; the run restarts the engine before it gives up
    ├── ErrorBudgetExceeded    6   more failed rows than `errors` allows
    └── RunLocked             75   another run holds the output directory

A user's mistake is one of these, never a traceback. All problems that are found together are
reported together: an error holds a list of lines, each saying what, where and what to do.
A bad row is none of these: it is data, an output row with an `error_type`.
"""

from collections.abc import Sequence


class BatchgenError(Exception):
    """One or more problems, each a line for the user; `exit_code` is what the process returns."""

    exit_code = 1

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (
            (problems,) if isinstance(problems, str) else tuple(problems)
        )
        super().__init__("\n".join(self.problems))


class UsageError(BatchgenError):
    """The command line asks for something that does not exist or does not fit together."""

    exit_code = 2


class JobFileError(BatchgenError):
    """The job file cannot be used as it is."""

    exit_code = 3


class DataError(BatchgenError):
    """Input shards, the output directory or the disk do not allow the run."""

    exit_code = 4


class ResumeMismatch(DataError):
    """The output directory holds rows made with other inputs or settings."""


class EngineError(BatchgenError):
    """The engine cannot start, or does not stay alive."""

    exit_code = 5


class EngineNotInstalled(EngineError):
    """The engine's package is missing; the message holds the command that installs it."""


class EngineDied(EngineError):
    """The engine is gone and with it every request in flight; no row is to blame yet."""


class ErrorBudgetExceeded(BatchgenError):
    """More rows failed than the job's `errors` section allows."""

    exit_code = 6


class RunLocked(BatchgenError):
    """Another process is writing into the output directory; trying later may work."""

    exit_code = 75
