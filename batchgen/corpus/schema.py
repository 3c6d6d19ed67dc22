"""Which input columns the output carries along, with which types; and that needed columns exist.

The first run fixes the kept columns: all columns of all its shards, or those of `output.keep`. A
later run has to fit: a column that a shard lacks becomes nulls, one that the output does not know
is dropped with a warning, and a type that would lose values is refused. JSONL is judged by a sample
from many shards; a later value that does not fit becomes null and is counted by the reader.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from batchgen.corpus.limits import PartLimits, ReadCounts, ReadPoint
from batchgen.corpus.parquet import ParquetShard
from batchgen.corpus.places import shown_path
from batchgen.corpus.text import TextRows
from batchgen.corpus.types import field_of_kinds, is_json_text, type_name, value_kind, widen
from batchgen.errors import DataError
from batchgen.records import RowError, Shard

_SAMPLED_SHARDS = 64
_SAMPLE_BYTES = 32 << 20
_SHARD_SAMPLE_BYTES = 1 << 20
_MOST_NAMES = 12
_LIMITS = PartLimits(2**62, 2**62, 32 << 20, "error_row")


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """The kept columns of the output, and everything that the input has."""

    kept_schema: pa.Schema
    warnings: list[str]
    columns: tuple[str, ...]
    """All columns of the input that are known, kept or not."""


@dataclass(slots=True)
class _Look:
    """What is known of one shard's columns."""

    shard: Shard
    fields: dict[str, pa.Field] = field(default_factory=dict)
    kinds: dict[str, set[str]] = field(default_factory=dict)
    """JSONL: kinds of values seen, by column."""
    has_rows: bool = False
    is_partial: bool = False
    """JSONL of which only the start was read."""


def plan_columns(
    shards: Sequence[Shard],
    *,
    needed: Sequence[str],
    keep: Sequence[str] | None,
    generated: Sequence[str],
    prefix: str,
    fixed: pa.Schema | None,
    used_by: Mapping[str, str] | None = None,
) -> ColumnPlan:
    """Kept columns and their types. `fixed` is the kept schema of an output that exists.

    `used_by` maps a needed column to the job key that uses it, for the message. Raises DataError
    with all problems: a needed or kept column that no row has, names that collide with those that
    batchgen adds (`generated`, with their prefix), types that do not go together.
    """
    looks = _look_at(shards)
    present = dict.fromkeys(name for look in looks for name in _names(look))
    problems = [
        *_missing_needed(looks, present, needed, used_by or {}),
        *_missing_kept(looks, present, _new_names(keep or (), fixed)),
    ]
    if problems:
        raise DataError(problems)
    wanted = list(present if keep is None else keep)
    warnings = _shard_warnings(looks, needed)
    if fixed is not None:
        warnings += _dropped(looks, wanted, fixed)
        problems = _misfits(looks, fixed)
        schema = fixed
    else:
        schema, problems = _merged(looks, wanted)
    problems += [
        f"input column '{name}': batchgen adds a column of this name to the output; set"
        f" output.prefix (now '{prefix}') to give its columns other names, or leave the column out"
        " with output.keep"
        for name in schema.names
        if name in set(generated)
    ]
    if problems:
        raise DataError(problems)
    return ColumnPlan(schema, warnings, tuple(present))


def _look_at(shards: Sequence[Shard]) -> list[_Look]:
    jsonl = [shard for shard in shards if shard.format == "jsonl"]
    step = max(1, -(-len(jsonl) // _SAMPLED_SHARDS))
    sampled = {shard.name for shard in jsonl[::step]}
    budget = max(1, min(_SHARD_SAMPLE_BYTES, _SAMPLE_BYTES // max(1, len(sampled))))
    looks = []
    for shard in shards:
        if shard.format == "parquet":
            looks.append(_look_at_parquet(shard))
        else:
            looks.append(_look_at_text(shard, budget if shard.name in sampled else 0))
    return looks


def _look_at_parquet(shard: Shard) -> _Look:
    file = ParquetShard(shard)
    file.close()
    fields = {column.name: pa.field(column.name, column.type) for column in file.schema}
    return _Look(shard, fields, has_rows=file.num_rows > 0)


def _look_at_text(shard: Shard, num_bytes: int) -> _Look:
    look = _Look(shard)
    if shard.format == "jsonl" and not num_bytes:
        look.is_partial = True
        return look
    rows = TextRows(shard, columns=None, limits=_LIMITS, start=ReadPoint(), counts=ReadCounts())
    try:
        look.fields = {name: pa.field(name, pa.string()) for name in rows.columns}
        for record in rows.records:
            if isinstance(record, RowError):
                continue
            look.has_rows = True
            if shard.format == "csv":
                break
            for name, value in record.items():
                look.kinds.setdefault(name, set()).add(value_kind(value))
            if rows.source.offset >= num_bytes:
                look.is_partial = True
                break
    finally:
        rows.source.close()
    return look


def _names(look: _Look) -> Iterable[str]:
    return look.kinds if look.shard.format == "jsonl" else look.fields


def _missing_needed(
    looks: Sequence[_Look],
    present: Mapping[str, object],
    needed: Sequence[str],
    used_by: Mapping[str, str],
) -> list[str]:
    absent = [name for name in needed if name not in present and not _is_anywhere(looks, name)]
    if not absent or not any(look.has_rows for look in looks):
        return []
    others = f" and {len(looks) - 1} more" if len(looks) > 1 else ""
    place = f"{shown_path(looks[0].shard)}{others}"
    has = ", ".join(f"'{name}'" for name in sorted(present)[:_MOST_NAMES])
    more = f" and {len(present) - _MOST_NAMES} more" if len(present) > _MOST_NAMES else ""
    pronoun = "they have" if others else "it has"
    return [
        f"{place}: no column '{name}', used by {used_by.get(name, 'the prompt')};"
        f" {pronoun} {has or 'none'}{more}{_did_you_mean(name, present)}"
        for name in absent
    ]


def _missing_kept(
    looks: Sequence[_Look], present: Mapping[str, object], keep: Sequence[str]
) -> list[str]:
    if not any(look.has_rows for look in looks):
        return []
    return [
        f"output.keep: no column '{name}' in the input{_did_you_mean(name, present)}"
        for name in keep
        if name not in present and not _is_anywhere(looks, name)
    ]


def _new_names(keep: Sequence[str], fixed: pa.Schema | None) -> list[str]:
    """Names that the input has to have, since the output does not have them yet."""
    known = () if fixed is None else fixed.names
    return [name for name in keep if name not in known]


def _did_you_mean(name: str, present: Iterable[str]) -> str:
    known = list(present)
    near = [other for other in known if other.lower() == name.lower()]
    near = near or difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _is_anywhere(looks: Sequence[_Look], name: str) -> bool:
    """Whether a row behind the samples has the column: all JSONL is read, if need be."""
    for look in looks:
        if not look.is_partial:
            continue
        rows = TextRows(
            look.shard, columns=(), limits=_LIMITS, start=ReadPoint(), counts=ReadCounts()
        )
        try:
            for record in rows.records:
                if isinstance(record, RowError):
                    continue
                look.has_rows = True
                if name in record:
                    look.kinds.setdefault(name, set()).add(value_kind(record[name]))
                    return True
        finally:
            rows.source.close()
    return False


def _shard_warnings(looks: Sequence[_Look], needed: Sequence[str]) -> list[str]:
    return [
        f"{shown_path(look.shard)}: no column '{name}': none of its rows can become a prompt"
        for look in looks
        if look.has_rows and look.shard.format != "jsonl"
        for name in needed
        if name not in look.fields
    ]


def _merged(looks: Sequence[_Look], wanted: Sequence[str]) -> tuple[pa.Schema, list[str]]:
    problems: list[str] = []
    fields = []
    for name in wanted:
        kinds = [kind for look in looks for kind in look.kinds.get(name, ())]
        merged = field_of_kinds(name, kinds)
        jsonl = next((look for look in looks if name in look.kinds), None)
        origin = jsonl.shard if jsonl is not None else None
        for look in looks:
            own = look.fields.get(name)
            if own is None:
                continue
            wider = widen(merged, own)
            if wider is None:
                other = shown_path(origin) if origin is not None else "the shards before it"
                problems.append(
                    f"{shown_path(look.shard)}: column '{name}' is {type_name(own)}, in {other}"
                    f" it is {type_name(merged)}; make the types equal, or leave the column out"
                    " with output.keep"
                )
                break
            merged, origin = wider, origin or look.shard
        fields.append(pa.field(name, pa.string()) if pa.types.is_null(merged.type) else merged)
    return pa.schema(fields), problems


def _dropped(looks: Sequence[_Look], wanted: Sequence[str], fixed: pa.Schema) -> list[str]:
    extra = [name for name in wanted if name not in fixed.names]
    if not extra:
        return []
    first = next(look for look in looks if extra[0] in _names(look))
    names = ", ".join(f"'{name}'" for name in extra)
    return [
        f"{shown_path(first.shard)}: the output has no column {names}, fixed by its first run; it"
        " is not kept"
    ]


def _misfits(looks: Sequence[_Look], fixed: pa.Schema) -> list[str]:
    return [
        f"{shown_path(look.shard)}: column '{own.name}' is {type_name(own)}, in the output it is"
        f" {type_name(fixed.field(own.name))}; convert the shard, or run with --fresh"
        for look in looks
        for own in _own_fields(look, fixed)
        if not _fits(own, fixed.field(own.name))
    ]


def _own_fields(look: _Look, fixed: pa.Schema) -> list[pa.Field]:
    names = [name for name in _names(look) if name in fixed.names]
    if look.shard.format != "jsonl":
        return [look.fields[name] for name in names]
    # A single odd value is a misfit of its row; only a column in which nothing fits is refused.
    return [
        field_of_kinds(name, look.kinds[name])
        for name in names
        if not any(
            _fits(field_of_kinds(name, [kind]), fixed.field(name)) for kind in look.kinds[name]
        )
    ]


def _fits(own: pa.Field, fixed: pa.Field) -> bool:
    wider = widen(fixed, own)
    if wider is None or is_json_text(wider) != is_json_text(fixed):
        return False
    return bool(wider.type == fixed.type)
