"""What every section of the job file shares: strict types, rules between fields, values per row.

A section is a frozen pydantic model, and the string under a field is its manual: editor hover,
JSON schema and docs/job-file.md all come from that string. (`config/manual.py` reads it when one of
these is wanted; pydantic's `use_attribute_docstrings` would read the sources at every start,
a quarter of the import time.) Types are strict, so that the text
"5" never passes for the number 5. Rules between fields (`rules`) run even when another field is
wrong, so that all problems of a file come out together.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

VALUE_TAG = "\0value"
COLUMN_TAG = "\0column"
"""Branches of `PerRow` in the location of a validation error; no key can be named like this."""

KeyPath = tuple[str | int, ...]
Problem = tuple[KeyPath, str]
"""Where, relative to the section, and a sentence that continues `key: `."""

OWN_ERROR = "batchgen"
"""Type of validation errors whose message is already in the user's words."""


def refusal(message: str) -> PydanticCustomError:
    """An error for a validator to raise, its message in the user's words."""
    return PydanticCustomError(OWN_ERROR, "{message}", {"message": message})


class Section(BaseModel):
    """Base of all sections."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        defer_build=True,
    )

    refused: ClassVar[Mapping[str, str]] = {}
    """Keys that a user may well try here, and why they do not exist."""

    @classmethod
    def rules(cls, given: Mapping[str, Any], wrong: Collection[str]) -> Iterator[Problem]:
        """Problems between fields. `given` holds the raw values that passed on their own.

        `wrong` are keys that are there, but with values that have a problem already.
        """
        yield from ()

    @model_validator(mode="wrap")
    @classmethod
    def _with_rules(cls, data: Any, handler: ModelWrapValidatorHandler["Section"]) -> "Section":
        errors: list[InitErrorDetails] = []
        section = None
        try:
            section = handler(data)
        except ValidationError as exc:
            errors = [_rebuilt(error) for error in exc.errors(include_url=False)]
        if isinstance(data, Mapping):
            wrong = {str(error["loc"][0]) for error in errors if error.get("loc")}
            given = {key: value for key, value in data.items() if key not in wrong}
            errors += [
                InitErrorDetails(type=refusal(message), loc=path, input=None)
                for path, message in cls.rules(given, wrong)
            ]
        if section is None or errors:
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return section


def _rebuilt(error: Any) -> InitErrorDetails:
    kind = refusal(error["msg"]) if error["type"] == OWN_ERROR else error["type"]
    return InitErrorDetails(
        type=kind, loc=error["loc"], input=error["input"], ctx=error.get("ctx", {})
    )


class ColumnRef(Section):
    """A value that each row brings along: `{column: name}`."""

    column: Annotated[str, Field(min_length=1)]
    """The input column that holds the value; null in a row means the default."""


def is_column_ref(value: Any) -> bool:
    """Whether a raw value is `{column: name}`."""
    return isinstance(value, ColumnRef) or (isinstance(value, dict) and set(value) == {"column"})


def _branch(value: Any) -> str:
    return COLUMN_TAG if is_column_ref(value) else VALUE_TAG


T = TypeVar("T")
PerRow = Annotated[
    Annotated[T, Tag(VALUE_TAG)] | Annotated[ColumnRef, Tag(COLUMN_TAG)], Discriminator(_branch)
]
"""`T`, or the input column that holds one for each row."""
