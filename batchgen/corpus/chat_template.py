"""`prompt.chat_template`: read and compiled before any model is loaded.

The tokenizer applies a chat template, and finds out with the first row that it cannot be used.
Here it is compiled as transformers would, without transformers, so that a slip is a line about
the job file. Rendering stays with the tokenizer.
"""

from pathlib import Path

from jinja2 import TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from batchgen.errors import JobFileError


def read_chat_template(given: str | None, place: str) -> str | None:
    """The text of a chat template given as such or as a path; None where there is none.

    Raises JobFileError, beginning with `place`, for a file that cannot be read and for a text that
    cannot be compiled.
    """
    if given is None:
        return None
    text = given if "{" in given else _read(given, place)
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
    )
    try:
        environment.from_string(text)
    except TemplateSyntaxError as exc:
        origin = "" if text is given else f" in '{given}'"
        raise JobFileError(
            f"{place}: line {exc.lineno} of the chat template{origin}: {exc.message}"
        ) from exc
    return text


def _read(path: str, place: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise JobFileError(
            f"{place}: cannot read the file '{path}': {reason}; give the path of a chat template,"
            " relative to the working directory, or its text"
        ) from exc


class _GenerationBlock(Extension):
    """`{% generation %}`, which marks what the model says in templates that also train it."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's base class declares it like this)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements inside, as if the block were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
