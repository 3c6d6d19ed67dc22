"""`stop_early`: when a row in flight is taken back from the engine, its text kept.

A completion that goes round in circles up to its token limit costs as much as a good one and is
worth nothing; so does one whose answer stands there already. `sampling.stop` ends a completion at
a fixed text and costs nothing; these rules see more (a regular expression, looping, time) and are
looked at every few tokens.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from batchgen.config.section import Section, refusal
from batchgen.config.wording import shown

LEAST_LOOP_CHARS = 32
"""The least `min_chars`: looping is recognized by text of half this length that comes back."""


def compile_pattern(text: str) -> re.Pattern[str]:
    """A regular expression that a completion may be stopped by.

    Raises ValueError, with a sentence that continues `key: `, where it cannot be compiled, or
    matches the empty text and so would stop every row at once.
    """
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as exc:
        raise ValueError(f"is no regular expression of Python's re: {exc}; it is {text!r}") from exc
    if pattern.search("") is not None:
        raise ValueError(
            f"matches the empty text, so every row would stop at once; it is {shown(text)}"
        )
    return pattern


def _check_pattern(text: str) -> str:
    try:
        compile_pattern(text)
    except ValueError as exc:
        raise refusal(str(exc)) from exc
    return text


class RepetitionStop(Section):
    """What counts as looping: the text ends with one piece of text, repeated word for word.

    `sampling.repetition_detection` is vLLM's own, which compares tokens; this one compares
    characters and works with every engine.
    """

    max_pattern_chars: Annotated[int, Field(ge=1, le=10_000)] = 500
    """Longest piece whose repetition is looked for, in characters."""
    min_count: Annotated[int, Field(ge=2)] = 4
    """The piece stands there at least so many times in a row."""
    min_chars: Annotated[int, Field(ge=LEAST_LOOP_CHARS)] = 200
    """All repetitions together have at least so many characters: a ruled line is no loop."""


class StopEarlyConfig(Section):
    """When a row in flight is aborted in the engine. It keeps the text that it has by then.

    Such a row has `finish_reason` abort and the rule in the column `stopped_by`. A row is looked at
    each time it has written eight more tokens; with `sampling.n` above 1 one completion that meets
    a rule stops them all. With a rule set, the `generate` and `sequential` feeds step the engine
    themselves instead of calling `LLM.generate`.
    """

    refused: ClassVar[Mapping[str, str]] = {
        "regex": "no such key; write stop_early.pattern",
        "timeout": "no such key; write stop_early.max_seconds",
    }

    pattern: Annotated[str, Field(min_length=1), AfterValidator(_check_pattern)] | None = None
    """A regular expression (Python's `re`): the row stops where it is found in the text so far.
    Of a long text only the newest part and the 1,000 characters before it are searched. Avoid
    nested repeats such as `(a+)+`, which can take for ever: all rows wait for the search."""
    max_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds that a row may run, from the moment it leaves the engine's queue. What is stopped by
    time differs from run to run."""
    repetition: bool | RepetitionStop | None = None
    """Stop a row whose text loops: `true`, or a mapping that says what counts as looping."""

    @property
    def is_active(self) -> bool:
        """Whether any rule is set."""
        return bool(self.pattern or self.max_seconds or self.loop)

    @property
    def loop(self) -> RepetitionStop | None:
        """What counts as looping; None where it is not looked for."""
        if isinstance(self.repetition, bool):
            return RepetitionStop() if self.repetition else None
        return self.repetition

    def values(self) -> dict[str, Any]:
        """The rules that are set, as plain values; `repetition: true` in full."""
        rules = {"pattern": self.pattern, "max_seconds": self.max_seconds}
        loop = self.loop
        given = rules | {"repetition": None if loop is None else loop.model_dump()}
        return {name: value for name, value in given.items() if value is not None}
