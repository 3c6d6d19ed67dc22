"""The only printer of the program.

stdout carries data: the answer of a command, as text or as one JSON object on the last line.
stderr carries everything else, without secrets. Documents and model outputs are hostile text: a
control character in one of them could move the cursor, retitle the window or hide what stands
before it, so all that is printed passes `printable` first, and color is added only after it.
"""

import contextlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from errno import EPIPE
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from batchgen.config.masking import masked
from batchgen.monitor.console import json_line
from batchgen.monitor.printable import printable as printable
from batchgen.monitor.printable import shortened as shortened

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_RESET: Final = "\x1b[0m"
_COLORS: Final = {"error": "\x1b[31m", "warning": "\x1b[33m"}


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
        self.run_id: str | None = None
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

    def piece(self, text: str) -> None:
        """Data for people that comes bit by bit, on stdout, without a line end of its own."""
        if text and not self.as_json:
            self._answer(printable(text))

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
        self._terminal().print(self._table(heads, rows))

    @property
    def can_redraw(self) -> bool:
        """Whether answers go to a terminal that can replace what it shows, and are not JSON."""
        return self._draws_tables and not self.as_json

    @contextlib.contextmanager
    def redrawn(self) -> Iterator[Callable[[Iterable[tuple[str, str]]], None]]:
        """Fields that replace each other on a terminal until the block ends; the last ones stay."""
        from rich.live import Live

        with Live(console=self._terminal(), auto_refresh=False) as live:
            yield lambda pairs: live.update(self._table(None, pairs), refresh=True)

    @property
    def num_columns(self) -> int:
        """Characters in a line of the terminal."""
        return shutil.get_terminal_size().columns

    @contextlib.contextmanager
    def columns_redrawn(self, heads: Sequence[str]) -> Iterator[Callable[[Sequence[str]], None]]:
        """Texts side by side on a terminal, replaced until the block ends; the last ones stay.

        Meanwhile the ends of texts that are longer than the window is high are shown.
        """
        from rich.live import Live

        terminal = self._terminal()
        texts: list[str] = []

        def draw(now: Sequence[str]) -> None:
            texts[:] = now
            live.update(_side_by_side(terminal, heads, texts, fits_window=True), refresh=True)

        try:
            with Live(console=terminal, auto_refresh=False, transient=True) as live:
                yield draw
        finally:
            terminal.print(_side_by_side(terminal, heads, texts, fits_window=False))

    def _terminal(self) -> "Console":
        from rich.console import Console

        return Console(
            file=self.data,
            markup=False,
            highlight=False,
            color_system="auto" if self._may_style else None,
        )

    def _table(self, heads: Sequence[str] | None, rows: Iterable[Sequence[str]]) -> "Table":
        from rich import box
        from rich.table import Table
        from rich.text import Text

        cells = [[Text(printable(cell)) for cell in row] for row in rows]
        table = Table(box=box.SIMPLE_HEAD if heads else box.SIMPLE, show_header=bool(heads))
        for column in range(max((len(row) for row in cells), default=0)):
            style = "bold" if column == 0 else ""
            table.add_column(heads[column] if heads else "", style=style, overflow="fold")
        for row in cells:
            table.add_row(*row)
        return table

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
            self._write(json_line(level, message, self.run_id, fields=fields))
            return
        line = printable(masked(line))
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


def _side_by_side(
    terminal: "Console", heads: Sequence[str], texts: Sequence[str], *, fits_window: bool
) -> "Table":
    """Columns of equal width; `fits_window`: no more of each text than its last lines."""
    from rich.table import Table
    from rich.text import Text

    padding = 2
    width = max(1, (terminal.width - padding * (len(heads) - 1)) // max(1, len(heads)))
    height = max(1, terminal.height - 3)
    table = Table(box=None, padding=(0, padding, 0, 0), pad_edge=False)
    cells = []
    for head, text in zip(heads, texts, strict=True):
        table.add_column(Text(printable(head)), width=width, overflow="fold")
        lines = Text(printable(text)).wrap(terminal, width)
        cells.append(Text("\n").join(lines[-height:] if fits_window else lines))
    table.add_row(*cells)
    return table


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
