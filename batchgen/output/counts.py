"""Totals over output rows: of a part, in its footer, and of a directory, their sum."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Counts:
    """What a set of output rows adds up to.

    Tokens are those that an engine worked on: rows without error that are no copy of another row.
    """

    num_rows: int = 0
    num_ok: int = 0
    failed_by_type: Mapping[str, int] = field(default_factory=dict)
    finish_reasons: Mapping[str, int] = field(default_factory=dict)
    """Of completions; with `n > 1` a row has several."""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int | None = None
    """None where no engine told."""
    num_cut: int = 0
    """Rows of which a completion ended at a token limit."""
    num_duplicates: int = 0
    """Rows that copy the completion of an equal prompt."""
    num_invalid_json: int | None = None
    """Completions that are not JSON; None where the job does not expect JSON."""
    rows_by_run: Mapping[str, int] = field(default_factory=dict)
    """Rows by the run that made them."""
    last_batch_id: int = -1
    """The highest batch id among the rows; -1 without rows."""

    @property
    def num_failed(self) -> int:
        """Rows with an `error_type`."""
        return self.num_rows - self.num_ok

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            num_rows=self.num_rows + other.num_rows,
            num_ok=self.num_ok + other.num_ok,
            failed_by_type=_sum_by_key(self.failed_by_type, other.failed_by_type),
            finish_reasons=_sum_by_key(self.finish_reasons, other.finish_reasons),
            num_prompt_tokens=self.num_prompt_tokens + other.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens + other.num_output_tokens,
            num_cached_tokens=_sum_known(self.num_cached_tokens, other.num_cached_tokens),
            num_cut=self.num_cut + other.num_cut,
            num_duplicates=self.num_duplicates + other.num_duplicates,
            num_invalid_json=_sum_known(self.num_invalid_json, other.num_invalid_json),
            rows_by_run=_sum_by_key(self.rows_by_run, other.rows_by_run),
            last_batch_id=max(self.last_batch_id, other.last_batch_id),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `num_failed` among them."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**values, "num_failed": self.num_failed}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The counts of `to_dict`."""
        known = {item.name for item in fields(cls)}
        return cls(**{key: value for key, value in values.items() if key in known})

    @classmethod
    def of(cls, rows: pa.Table, prefix: str) -> Self:
        """Counts of rows with the added columns; kept columns are not looked at."""

        def column(name: str) -> pa.ChunkedArray:
            return rows.column(prefix + name)

        error_type, duplicate_of = column("error_type"), column("duplicate_of")
        is_ok, is_own = pc.is_null(error_type), pc.is_null(duplicate_of)
        worked = pc.and_(is_ok, is_own)
        cached = column("num_cached_tokens").filter(worked)
        return cls(
            num_rows=rows.num_rows,
            num_ok=error_type.null_count,
            failed_by_type=_by_value(error_type),
            finish_reasons=_by_value(column("finish_reason")),
            num_prompt_tokens=_sum(column("num_prompt_tokens").filter(worked)),
            num_output_tokens=_sum(column("num_output_tokens").filter(worked)),
            num_cached_tokens=None if cached.null_count == len(cached) else _sum(cached),
            num_cut=_num_cut(column("finish_reason")),
            num_duplicates=rows.num_rows - duplicate_of.null_count,
            num_invalid_json=_num_invalid(rows, prefix + "json_valid"),
            rows_by_run=_by_value(column("run_id")),
            last_batch_id=_max(column("batch_id")),
        )


def _by_value(values: pa.ChunkedArray) -> dict[str, int]:
    """Occurrences of each value, those in lists one by one; nulls are left out."""
    if pa.types.is_list(values.type):
        values = pc.list_flatten(values)
    return {
        str(item["values"]): int(item["counts"])
        for item in pc.value_counts(values).to_pylist()
        if item["values"] is not None
    }


def _num_cut(reasons: pa.ChunkedArray) -> int:
    if not pa.types.is_list(reasons.type):
        return _sum(pc.equal(reasons, "length"))
    parents = pc.list_parent_indices(reasons.combine_chunks())
    is_cut = pc.equal(pc.list_flatten(reasons.combine_chunks()), "length")
    return len(pc.unique(parents.filter(is_cut)))


def _num_invalid(rows: pa.Table, name: str) -> int | None:
    if name not in rows.column_names:
        return None
    values = rows.column(name)
    if pa.types.is_list(values.type):
        values = pc.list_flatten(values)
    return _sum(pc.invert(values))


def _sum(values: pa.ChunkedArray) -> int:
    return int(pc.sum(values, min_count=0).as_py())


def _max(values: pa.ChunkedArray) -> int:
    highest = pc.max(values).as_py()
    return -1 if highest is None else int(highest)


def _sum_by_key(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(one) + Counter(other))


def _sum_known(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other
