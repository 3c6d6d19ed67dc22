"""The only printer of the program.

stdout carries data: the answer of a command, as text or as one JSON object on the last line.
stderr carries everything else. Documents and model outputs are hostile text: a control character
in one of them could move the cursor, retitle the window or hide what stands before it, so all
that is printed passes `printable` first, and color is added only after it.
"""

import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from errno import EPIPE
from pathlib import Path
from typing import Any, Final, TextIO

_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_RESET: Final = "\x1b[0m"
_COLORS: Final = {"error": "\x1b[31m", "warning": "\x1b[33m"}


def printable(text: str) -> str:
    """`text` with characters that a terminal would obey, or not show, written as escapes.

    Line feeds and tabs stay.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def shortened(text: str, max_chars: int = 300) -> str:
    """One line of at most about `max_chars` characters; the middle is left out and counted."""
    line = text.replace("\n", "\\n")
    if len(line) <= max_chars:
        return line
    head, tail = max_chars * 2 // 3, max_chars // 3
    return f"{line[:head]} [... {len(line) - head - tail:,} characters ...] {line[-tail:]}"


class StdoutLost(Exception):
    """The answer cannot be written. `is_closed`: nobody reads it any more, as with `| head`."""

    def __init__(self, reason: str, *, is_closed: bool) -> None:
        super().__init__(f"stdout cannot be written: {reason}")
        self.is_closed = is_closed


class Output:
    """Prints, in the mode that the command line and the environment ask for.

    It is also the console that a run talks to (`batchgen.monitor.console`).
    """

    def __init__(self, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self.data: TextIO = stdout or sys.stdout or _nowhere()
        self.stream: TextIO = stderr or sys.stderr or _nowhere()
        self.as_json = False
        self.quiet = False
        self.log_format = "text"
        is_dumb = os.environ.get("TERM") == "dumb"
        self.is_terminal = self.stream.isatty() and not is_dumb
        self._draws_tables = self.data.isatty() and not is_dumb
        self._may_style = not os.environ.get("NO_COLOR")
        self._has_color = self.is_terminal and self._may_style
        self._writer: Callable[[str], None] | None = None
        _never_fail_to_encode(self.data)
        _never_fail_to_encode(self.stream)

    def set_mode(
        self, *, as_json: bool = False, quiet: bool = False, log_format: str = "text"
    ) -> None:
        """What the options of a command ask for. JSON lines are never mixed with a bar."""
        self.as_json = as_json
        self.quiet = quiet
        self.log_format = log_format
        if log_format == "json":
            self.is_terminal = self._has_color = False

    def text(self, text: str = "") -> None:
        """Data for people, on stdout; nothing where the answer is JSON."""
        if not self.as_json:
            self._answer(printable(text) + "\n")

    def raw(self, text: str) -> None:
        """Data that is a file's content (a schema, a job file), on stdout, as it is."""
        self._answer(text if text.endswith("\n") else text + "\n")

    def fields(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Names and values in two columns."""
        rows = list(pairs)
        if self._draws_tables and not self.as_json:
            self._draw(None, rows)
            return
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.text(f"{name:<{width}}  {value}".rstrip())

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Columns as wide as they need to be; no value is ever cut."""
        if self._draws_tables and not self.as_json:
            self._draw(heads, rows)
            return
        lines = [list(heads), *[[printable(cell) for cell in row] for row in rows]]
        widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
        for line in lines:
            cells = (f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True))
            self.text("  ".join(cells).rstrip())

    def _draw(self, heads: Sequence[str] | None, rows: Iterable[Sequence[str]]) -> None:
        """The same on a terminal: ruled, and folded where the window is narrow."""
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        cells = [[Text(printable(cell)) for cell in row] for row in rows]
        table = Table(box=box.SIMPLE_HEAD if heads else box.SIMPLE, show_header=bool(heads))
        for column in range(max((len(row) for row in cells), default=0)):
            style = "bold" if column == 0 else ""
            table.add_column(heads[column] if heads else "", style=style, overflow="fold")
        for row in cells:
            table.add_row(*row)
        Console(
            file=self.data,
            markup=False,
            highlight=False,
            color_system="auto" if self._may_style else None,
        ).print(table)

    def json(self, answer: Mapping[str, Any]) -> None:
        """The answer as one object on one line of stdout; ASCII, so that nothing is obeyed."""
        line = json.dumps(answer, default=str).replace("\x7f", "\\u007f")
        self._answer(line + "\n")

    def line(self, text: str) -> None:
        """Information, on stderr."""
        _log(logging.INFO, text)
        if not self.quiet:
            self._say("info", text, text)

    def warn(self, text: str) -> None:
        """A warning, on stderr, also when quiet."""
        _log(logging.WARNING, text)
        self._say("warning", text, f"warning: {text}")

    def error(self, text: str) -> None:
        """Why the command ends with a code other than 0, on stderr."""
        _log(logging.ERROR, text)
        self._say("error", text, f"error: {text}")

    def progress(self, text: str, fields: dict[str, object]) -> None:
        """A progress line; with JSON lines its numbers as well."""
        _log(logging.INFO, text)
        self._say("progress", text, text, fields)

    def write_through(self, writer: Callable[[str], None] | None) -> None:
        """Send finished lines through `writer` while a progress bar is drawn."""
        self._writer = writer

    def _answer(self, text: str) -> None:
        """Onto stdout at once: a disk that is full, or a reader that is gone, shows here."""
        try:
            self.data.write(text)
            self.data.flush()
        except OSError as exc:
            _abandon(self.data)
            raise StdoutLost(exc.strerror or str(exc), is_closed=exc.errno == EPIPE) from exc

    def _say(
        self, level: str, message: str, line: str, fields: Mapping[str, object] | None = None
    ) -> None:
        if self.log_format == "json":
            moment = datetime.now(UTC).isoformat(timespec="seconds")
            entry = {"time": moment, "level": level, "message": message, **(fields or {})}
            self._write(json.dumps(entry, default=str))
            return
        line = printable(line)
        if self._has_color and level in _COLORS:
            head, rest = line.split(":", 1)
            line = f"{_COLORS[level]}{head}:{_RESET}{rest}"
        self._write(line)

    def _write(self, line: str) -> None:
        if self._writer is not None:
            self._writer(line)
        else:
            self.stream.write(line + "\n")
            self.stream.flush()


def _nowhere() -> TextIO:
    """For a process that was started without stdout or stderr (`>&-`): it also takes the free
    descriptor, which else the next file would get."""
    return Path(os.devnull).open("w", encoding="utf-8")


def _abandon(stream: TextIO) -> None:
    """Let what a stream still holds, which the interpreter writes at its end, go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _log(level: int, text: str) -> None:
    """Into the run's log file, where one is open; never to logging's own last resort."""
    logger = logging.getLogger("batchgen")
    if logger.handlers:
        logger.log(level, text)


def _never_fail_to_encode(stream: TextIO) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
