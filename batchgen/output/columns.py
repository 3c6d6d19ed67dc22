"""The columns of `outputs/`: kept input columns first, then those that batchgen adds.

The schema follows from the job alone, never from what the rows turned out to be, so every part has
the same one, whether or not it holds errors. The first run writes it down; later runs keep it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from batchgen.config.models import ColumnRef, ModelConfig, OutputConfig, SamplingConfig
from batchgen.errors import DataError, ResumeMismatch
from batchgen.output.disk import write_atomically
from batchgen.output.journal import JOURNALED, RowsFrame
from batchgen.output.layout import RunLayout

LOGPROBS_TYPE: Final = pa.list_(
    pa.list_(
        pa.struct(
            [
                ("token_id", pa.int64()),
                ("token", pa.string()),
                ("logprob", pa.float64()),
                ("rank", pa.int64()),
            ]
        )
    )
)
"""Per output token the candidates."""

_TYPES: Final = {
    "shard": pa.string(),
    "row": pa.int64(),
    "output": pa.string(),
    "finish_reason": pa.string(),
    "num_prompt_tokens": pa.int64(),
    "num_output_tokens": pa.int64(),
    "num_cached_tokens": pa.int64(),
    "ttft_s": pa.float64(),
    "latency_s": pa.float64(),
    "run_id": pa.string(),
    "batch_id": pa.int64(),
    "duplicate_of": pa.string(),
    "error_type": pa.string(),
    "error": pa.string(),
    "prompt": pa.string(),
    "reasoning": pa.string(),
    "logprobs": LOGPROBS_TYPE,
    "json_valid": pa.bool_(),
    "stopped_by": pa.string(),
}
_PER_COMPLETION: Final = ("output", "finish_reason", "reasoning", "logprobs", "json_valid")
"""Lists where a prompt may have several completions."""


def output_schema(
    kept: pa.Schema,
    *,
    prefix: str = "",
    with_prompt: bool = False,
    with_reasoning: bool = False,
    with_logprobs: bool = False,
    with_json: bool = False,
    with_stopped_by: bool = False,
    n_many: bool = False,
) -> pa.Schema:
    """Schema of the parts: `kept`, then the added columns. `n_many`: several completions a row."""
    absent = {
        name
        for name, is_there in (
            ("prompt", with_prompt),
            ("reasoning", with_reasoning),
            ("logprobs", with_logprobs),
            ("json_valid", with_json),
            ("stopped_by", with_stopped_by),
        )
        if not is_there
    }
    added = [
        pa.field(prefix + name, pa.list_(kind) if n_many and name in _PER_COMPLETION else kind)
        for name, kind in _TYPES.items()
        if name not in absent
    ]
    # The fields' own metadata stays: it marks the columns that hold JSON text.
    return pa.schema([*kept, *added])


def job_schema(
    kept: pa.Schema,
    output: OutputConfig,
    sampling: SamplingConfig,
    model: ModelConfig,
    *,
    stops_early: bool = False,
) -> pa.Schema:
    """Schema of the parts of a job."""
    return output_schema(
        kept,
        prefix=output.prefix,
        with_prompt=output.prompt,
        with_reasoning=model.reasoning_parser is not None,
        with_logprobs=sampling.logprobs is not None,
        with_json=output.expects_json,
        with_stopped_by=stops_early,
        n_many=isinstance(sampling.n, ColumnRef) or (sampling.n or 1) > 1,
    )


def generated_names(
    output: OutputConfig,
    sampling: SamplingConfig,
    model: ModelConfig,
    *,
    stops_early: bool = False,
) -> tuple[str, ...]:
    """Names of the columns that a job adds, prefix included; known before any model loads."""
    schema = job_schema(pa.schema([]), output, sampling, model, stops_early=stops_early)
    return tuple(schema.names)


@dataclass(frozen=True, slots=True)
class PartColumns:
    """A schema of parts, divided: the first `num_kept` columns are the input's."""

    schema: pa.Schema
    prefix: str
    num_kept: int

    @classmethod
    def of(cls, schema: pa.Schema, prefix: str) -> "PartColumns":
        """Divide a schema of `output_schema`, in which `shard` is the first added column.

        Raises ResumeMismatch where the schema was made with another prefix.
        """
        num_kept = schema.get_field_index(f"{prefix}shard")
        if num_kept < 0:
            raise ResumeMismatch(
                f"output.prefix: the columns there have another prefix than '{prefix}'; give the "
                "job another output.path, or begin anew with --fresh"
            )
        return cls(schema, prefix, num_kept)

    @classmethod
    def recognize(cls, schema: pa.Schema) -> "PartColumns":
        """Divide a schema whose prefix is not known: where shard, row and output stand in line."""
        names = schema.names
        for index, name in enumerate(names):
            prefix = name.removesuffix("shard")
            first = [prefix + column for column in ("shard", "row", "output")]
            if names[index : index + 3] == first:
                return cls(schema, prefix, index)
        raise DataError(f"a schema without the columns of batchgen: {', '.join(names)}")

    @property
    def kept_schema(self) -> pa.Schema:
        """The kept input columns."""
        return pa.schema(list(self.schema)[: self.num_kept])

    @property
    def added_schema(self) -> pa.Schema:
        """The columns that batchgen adds, with their prefix."""
        return pa.schema(list(self.schema)[self.num_kept :])

    @property
    def is_many(self) -> bool:
        """Whether a row holds lists of completions."""
        return bool(pa.types.is_list(self.schema.field(self.name("output")).type))

    def name(self, column: str) -> str:
        """An added column's name in the files."""
        return self.prefix + column

    def journaled(self) -> tuple[bool, ...]:
        """Which of `JOURNALED` the schema has."""
        names = set(self.added_schema.names)
        return tuple(self.prefix + column in names for column in JOURNALED)

    def added_table(self, shard: str, frames: Sequence[RowsFrame]) -> pa.Table:
        """The rows of these frames, in their order, as the added columns."""
        num_rows = sum(len(frame.rows) for frame in frames)
        arrays: list[pa.Array] = []
        for field in self.added_schema:
            column = field.name.removeprefix(self.prefix)
            if column == "shard":
                arrays.append(pa.repeat(pa.scalar(shard, pa.string()), num_rows))
                continue
            index = JOURNALED.index(column)
            as_list = self.is_many and column in _PER_COMPLETION
            values = [_values(frame, index, as_list=as_list) for frame in frames]
            arrays.append(_array(values, field.type, num_rows))
        return pa.Table.from_arrays(arrays, schema=self.added_schema)


def _array(values: Sequence[Sequence[Any]], kind: pa.DataType, num_rows: int) -> pa.Array:
    if all(not piece or piece.count(None) == len(piece) for piece in values):
        return pa.nulls(num_rows, kind)
    return pa.array(list(chain.from_iterable(values)), kind, from_pandas=False)


def _values(frame: RowsFrame, index: int, *, as_list: bool) -> Sequence[Any]:
    values = frame.columns[index]
    if values is None:
        return [None] * len(frame.rows)
    if not as_list:
        return values
    # A job whose `n` comes from a column has rows with one completion among those with several.
    return [
        [value] if isinstance(output, str) else value
        for value, output in zip(values, frame.column("output"), strict=True)
    ]


def clean_columns(columns: Iterable[Sequence[Any] | None]) -> list[list[Any] | None]:
    """The same values with each lone surrogate replaced: Parquet and JSON hold valid Unicode."""
    return [None if column is None else [_clean(value) for value in column] for column in columns]


def _clean(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case list() | tuple():
            return [_clean(item) for item in value]
        case dict():
            return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def save_schema(layout: RunLayout, schema: pa.Schema) -> None:
    """Write down the schema of a run directory, for every later run."""
    data = schema.serialize().to_pybytes()
    write_atomically(layout.schema, lambda file: file.write(data))


def load_schema(layout: RunLayout) -> pa.Schema | None:
    """The schema that a run directory was begun with; None for a new one."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(layout.schema.read_bytes()))
    except FileNotFoundError:
        pass
    except (pa.ArrowException, OSError) as exc:
        raise DataError(
            f"{layout.schema}: is damaged ({exc}); remove it, the first part has the same schema"
        ) from exc
    first = min(layout.outputs.rglob("[!.]*.parquet"), default=None)
    return None if first is None else pq.read_schema(first).remove_metadata()


def check_schema(fixed: pa.Schema, wanted: pa.Schema, place: str) -> None:
    """Raise ResumeMismatch, with every difference, where a run would write other columns."""
    if fixed.equals(wanted):
        return
    problems = [
        f"{place}: column '{name}' is {_type(fixed, name)} there, this job makes it "
        f"{_type(wanted, name)}"
        for name in dict.fromkeys([*fixed.names, *wanted.names])
        if _type(fixed, name) != _type(wanted, name)
    ]
    problems = problems or [f"{place}: the columns have another order than this job gives them"]
    raise ResumeMismatch(
        [*problems, "give the job another output.path, or begin anew with --fresh"]
    )


def _type(schema: pa.Schema, name: str) -> str:
    return str(schema.field(name).type) if name in schema.names else "absent"
