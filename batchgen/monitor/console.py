"""The seam between a run and whoever watches it.

A run never prints. It hands sentences to a console, and the console knows where they go: to
stderr as text, to stderr as JSON lines, above a progress bar, or nowhere. The command line brings
its own (`cli/output.py`); `SilentConsole` is for callers of the Python API and for tests.
"""

import io
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO

from batchgen.config.masking import masked


class Console(Protocol):
    """Where the sentences of a run go. Safe to call from any thread."""

    stream: TextIO
    """Where progress is drawn: stderr."""
    is_terminal: bool
    """Whether `stream` can redraw a line (False for files, pipes and TERM=dumb)."""
    quiet: bool
    """No progress and no information; warnings are still given."""
    log_format: str
    """`text` or `json`: how lines on stderr and in the log file look."""
    run_id: str | None
    """The run that speaks, for JSON lines; it is set by the run. None before there is one."""

    def line(self, text: str) -> None:
        """Say something that is good to know."""
        ...

    def warn(self, text: str) -> None:
        """Say something that the user should look at although the run goes on."""
        ...

    def progress(self, text: str, fields: dict[str, object]) -> None:
        """One progress line: `text` for people, `fields` where lines are JSON."""
        ...

    def write_through(self, writer: Callable[[str], None] | None) -> None:
        """While a bar is drawn, send finished lines through `writer`; None when it is gone."""
        ...


class SilentConsole:
    """Keeps what it is told and shows nothing."""

    def __init__(self) -> None:
        self.stream: TextIO = io.StringIO()
        self.is_terminal = False
        self.quiet = True
        self.log_format = "text"
        self.run_id: str | None = None
        self.lines: list[str] = []
        self.warnings: list[str] = []

    def line(self, text: str) -> None:
        """Keep it in `lines`."""
        self.lines.append(text)

    def warn(self, text: str) -> None:
        """Keep it in `warnings`."""
        self.warnings.append(text)

    def progress(self, text: str, fields: dict[str, object]) -> None:
        """Keep its text in `lines`."""
        self.lines.append(text)

    def write_through(self, writer: Callable[[str], None] | None) -> None:
        """There is no bar to protect."""


def json_line(
    level: str,
    message: str,
    run_id: str | None,
    *,
    moment: datetime | None = None,
    fields: Mapping[str, Any] | None = None,
) -> str:
    """A sentence as one line of JSON: `time` (UTC), `level`, `message`, `run_id`, then `fields`.

    Secrets are masked. `moment` None: now.
    """
    entry = {
        "time": utc_text(moment or datetime.now(UTC)),
        "level": level,
        "message": masked(message),
        "run_id": run_id,
        **(fields or {}),
    }
    return json.dumps(entry, default=str)


def utc_text(moment: datetime) -> str:
    """`2026-01-31T02:00:00Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
