"""Completions on a terminal, or in a pipe, while they are being written.

All rows are written at the same time, and there are two ways to show that. Side by side, each in a
column of its own that is drawn again and again; that takes a terminal with room. One after
another: the first row is shown as it comes, what comes of the others meanwhile waits for its turn.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from batchgen.cli.check import shortened_lines
from batchgen.cli.output import Output

if TYPE_CHECKING:
    from batchgen.run.previewing import PreviewRow, Screen

COLUMN_CHARS: Final = 60
"""A narrower column breaks too many lines to be read along."""
REDRAW_S: Final = 0.05
"""Seconds between two drawings; more often is no faster for an eye, and slows the engine."""


@contextmanager
def screen_for(output: Output, num_rows: int) -> Iterator["Screen"]:
    """The way to show so many rows that fits where `output` goes; with JSON nothing is shown."""
    if output.as_json:
        yield Silence()
    elif num_rows > 1 and output.can_redraw and output.num_columns >= COLUMN_CHARS * num_rows:
        with SideBySide(output) as side_by_side:
            yield side_by_side
    else:
        yield OneAfterAnother(output)


class Silence:
    """Shows nothing: the answer says it all."""

    def begin(self, rows: Sequence["PreviewRow"]) -> None:
        """Nothing to prepare."""

    def show(self, index: int, text: str) -> None:
        """Not shown."""

    def end(self, index: int, row: "PreviewRow") -> None:
        """Not shown."""

    def leave(self) -> None:
        """Nothing to leave."""


class OneAfterAnother:
    """Rows in their order, the one whose turn it is as it comes."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._rows: list[PreviewRow] = []
        self._texts: list[str] = []
        self._has_ended: list[bool] = []
        self._turn = 0
        self._num_shown = 0
        """Characters shown of the row whose turn it is."""

    def begin(self, rows: Sequence["PreviewRow"]) -> None:
        """Show the first prompt."""
        self._rows = list(rows)
        self._texts = [""] * len(rows)
        self._has_ended = [False] * len(rows)
        self._open()

    def show(self, index: int, text: str) -> None:
        """Show what is new, or keep it until it is this row's turn."""
        self._texts[index] = text
        if index == self._turn:
            self._catch_up()

    def end(self, index: int, row: "PreviewRow") -> None:
        """The rest of the row, and of those behind it what has come by now."""
        self._rows[index] = row
        self._texts[index] += ending(self._texts[index], row)
        self._has_ended[index] = True
        while self._turn < len(self._rows) and self._has_ended[self._turn]:
            self._catch_up()
            self._output.text("\n")
            self._turn += 1
            self._open()

    def leave(self) -> None:
        """A line end behind the piece that was the last one."""
        self._output.text()

    def _open(self) -> None:
        self._num_shown = 0
        if self._turn < len(self._rows):
            for line in prompt_lines(self._rows[self._turn]):
                self._output.text(line)
            self._catch_up()

    def _catch_up(self) -> None:
        text = self._texts[self._turn]
        self._output.piece(text[self._num_shown :])
        self._num_shown = max(self._num_shown, len(text))


class SideBySide:
    """A column for each row, drawn again as they grow; a context manager."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._drawing = ExitStack()
        self._heads: list[str] = []
        self._texts: list[str] = []
        self._draw: Callable[[Sequence[str]], None] | None = None
        self._drawn_at = 0.0

    def __enter__(self) -> "SideBySide":
        return self

    def __exit__(self, *exc: object) -> None:
        self.leave()

    def begin(self, rows: Sequence["PreviewRow"]) -> None:
        """Show all prompts. The columns come with the first text: an engine that starts talks."""
        self._heads = [_name(row) for row in rows]
        self._texts = [""] * len(rows)
        for row in rows:
            for line in prompt_lines(row):
                self._output.text(line)
            self._output.text()

    def show(self, index: int, text: str) -> None:
        """Draw it, unless the last drawing was just now."""
        self._texts[index] = text
        if time.monotonic() - self._drawn_at >= REDRAW_S:
            self._redraw()

    def end(self, index: int, row: "PreviewRow") -> None:
        """The whole text of this row."""
        self._texts[index] += ending(self._texts[index], row)
        if self._draw is not None:
            self._redraw()

    def leave(self) -> None:
        """Let the columns stand as they are, and give the terminal back."""
        if self._draw is None and any(self._texts):
            self._redraw()
        self._drawing.close()

    def _redraw(self) -> None:
        if self._draw is None:
            self._draw = self._drawing.enter_context(self._output.columns_redrawn(self._heads))
        self._draw(self._texts)
        self._drawn_at = time.monotonic()


def prompt_lines(row: "PreviewRow") -> Iterator[str]:
    """The head of a row and its prompt, token by token where the tokens are known."""
    tokens = row.num_prompt_tokens
    yield _name(row) + ("" if tokens is None else f", {tokens:,} prompt tokens")
    if row.prompt_tokens is not None:
        text = "".join(map(_token, row.prompt_tokens))
    else:
        text = row.prompt or ""
    for line in shortened_lines(text):
        yield f"  | {line}"


def ending(shown: str, row: "PreviewRow") -> str:
    """What there is to show of a row that has ended, after `shown` of its first completion.

    The whole text may be another one than what was shown while it was written: then the model's
    thinking was split off, and the answer follows by itself.
    """
    if row.error_type is not None:
        return f"{row.error_type}: {row.error}"
    first, *others = [row.output or ""] if isinstance(row.output, str | None) else row.output
    text = first[len(shown) :] if first.startswith(shown) else f"\n\n[answer]\n{first}"
    for number, other in enumerate(others, start=2):
        text += f"\n\n[completion {number}]\n{other}"
    return text


def _name(row: "PreviewRow") -> str:
    return f"{row.shard}:{row.row}"


def _token(text: str) -> str:
    """A token in brackets; what ends a line in the prompt ends one here.

    >>> _token("\\n\\n")
    '[\\\\n\\\\n]\\n'
    """
    shown = text.replace("\n", "\\n")
    return f"[{shown}]\n" if "\n" in text else f"[{shown}]"
