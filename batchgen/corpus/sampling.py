"""Effective sampling of each row: the job's constants, and what the row brings along.

A row's values are checked as strictly as the job file, because vLLM checks no types and a text
in place of a number blocks its engine for ever. Equal values share one `Sampling`, so that the
work is done once for each distinct combination, and each distinct JSON schema compiles once.
"""

import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import orjson
from pydantic import ValidationError

from batchgen.config.json_schema import schema_problem
from batchgen.config.models import SamplingConfig
from batchgen.config.section import is_column_ref
from batchgen.config.wording import in_words, shown
from batchgen.errors import JobFileError
from batchgen.records import MISSING, RowBlock, RowError, Sampling

_MOST_REMEMBERED = 4096
_LONGEST_MESSAGE = 300
_SEED_BITS = 53
"""Small enough for any engine, and exact where JSON numbers become doubles."""


class RowSampling:
    """Sampling and seed of each row of a block.

    Raises JobFileError where the job's own JSON schema cannot be compiled.
    """

    def __init__(self, config: SamplingConfig, where: Callable[[str], str]) -> None:
        self._constants = config.constants()
        self._columns = config.columns()
        self._seed_column = self._columns.pop("seed", None)
        self._seed = config.seed if isinstance(config.seed, int) else None
        schema = self._constants.get("json_schema")
        problem = schema_problem(schema) if schema is not None else None
        if problem is not None:
            raise JobFileError(f"{where('sampling.json_schema')}: {problem}")
        self._shared = _sampling(self._constants)
        self._known: dict[bytes, Sampling | RowError] = {}
        self._schemas: dict[bytes, str | RowError] = {}

    @property
    def shared(self) -> Sampling | None:
        """The sampling of all rows, where no row brings values along (a seed apart)."""
        return None if self._columns else self._shared

    @property
    def is_seedless(self) -> bool:
        """Whether no row has a seed."""
        return self._seed is None and self._seed_column is None

    def of(self, block: RowBlock, offset: int) -> Sampling | RowError:
        """Effective sampling of a row, or bad_sampling, or bad_schema.

        A column that is null, NaN or missing in the row leaves the engine's default.
        """
        given = {
            field: value
            for field, column in self._columns.items()
            if (value := _value(block, column, offset)) is not None
        }
        if not given:
            return self._shared
        try:
            key = orjson.dumps(given, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS)
        except TypeError as exc:
            # Nested deeper than any value of use, or an integer beyond 64 bits.
            kind = "bad_schema" if set(given) == {"json_schema"} else "bad_sampling"
            return RowError(kind, f"sampling.{', '.join(given)}: {_shortened(str(exc))}")
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            known = self._known[key] = self._judge(given)
        return known

    def seed(self, block: RowBlock, offset: int, sampling: Sampling) -> int | RowError | None:
        """The row's own seed; None where sampling is greedy or nothing fixes one.

        The job's seed is mixed with shard and row, so that equal prompts get different samples; a
        seed from a column is taken as it is.
        """
        if sampling.values.get("temperature", 1.0) == 0:
            return None
        if self._seed_column is not None:
            value = _value(block, self._seed_column, offset)
            if value is None:
                return None
            error = _field_error({"seed": value})
            return error if error is not None else int(value)
        if self._seed is None:
            return None
        return row_seed(self._seed, block.shard, block.start_row + offset)

    def _judge(self, given: Mapping[str, Any]) -> Sampling | RowError:
        values = dict(given)
        for field, value in values.items():
            if is_column_ref(value):
                return RowError("bad_sampling", f"sampling.{field}: {{column: …}} is no value here")
        schema = values.pop("json_schema", None)
        if schema is not None:
            schema = self._schema(schema)
            if isinstance(schema, RowError):
                return schema
        outputs = values.get("structured_outputs")
        if isinstance(outputs, dict) and isinstance(outputs.get("json"), str):
            # A text here would be taken for a path, and a row may not name files.
            inner = self._schema(outputs["json"])
            if isinstance(inner, RowError):
                return inner
            values["structured_outputs"] = {**outputs, "json": inner}
        fixed = {k: v for k, v in self._constants.items() if k not in ("json_schema", *given)}
        error = _field_error({**fixed, **values})
        if error is not None:
            return error
        checked = SamplingConfig.model_validate({**fixed, **values}).constants()
        if "json_schema" in self._constants:
            checked["json_schema"] = self._constants["json_schema"]
        if schema is not None:
            checked["json_schema"] = schema
        return _sampling(checked)

    def _schema(self, schema: Any) -> str | RowError:
        """Compact text of a row's JSON schema, or bad_schema."""
        if isinstance(schema, dict):
            text = json.dumps(schema)
        elif isinstance(schema, str):
            text = schema
        else:
            message = f"must be a JSON schema as text or object, is {shown(schema)}"
            return RowError("bad_schema", f"sampling.json_schema: {message}")
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        known = self._schemas.get(digest)
        if known is None:
            if len(self._schemas) >= _MOST_REMEMBERED:
                self._schemas.clear()
            known = self._schemas[digest] = _compile(text)
        return known


def row_seed(seed: int, shard: str, row: int) -> int:
    """The seed of one row, derived from the job's."""
    digest = blake2b(f"{seed}\0{shard}\0{row}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)


def _compile(text: str) -> str | RowError:
    problem = schema_problem(text)
    if problem is not None:
        return RowError("bad_schema", f"the JSON schema {_shortened(problem)}")
    return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)


def _value(block: RowBlock, column: str, offset: int) -> Any:
    values = block.columns.get(column)
    value = None if values is None else values[offset]
    if value is MISSING or value != value:
        return None
    # Integers that share a Parquet or pandas column with nulls come as floats.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _field_error(values: Mapping[str, Any]) -> RowError | None:
    try:
        SamplingConfig.model_validate(values)
    except ValidationError as exc:
        sentences = [
            f"sampling.{'.'.join(str(part) for part in path)}: {_shortened(message)}"
            for path, message in in_words(exc, SamplingConfig)
        ]
        return RowError("bad_sampling", "; ".join(sentences[:3]))
    return None


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}…"


def _sampling(values: dict[str, Any]) -> Sampling:
    text = orjson.dumps(values, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS)
    return Sampling(values, blake2b(text, digest_size=16).digest())
