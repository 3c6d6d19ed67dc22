"""Proves that the outputs belong to the input: each row once, in order, under one schema.

What the input is, is given: this module knows files, not jobs. Only row numbers and error types
are read, part by part.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchgen.errors import DataError
from batchgen.output.layout import RunLayout
from batchgen.output.parts import PartKey
from batchgen.output.reading import part_files
from batchgen.output.snapshot import Snapshot, look

_SHOWN = 5
"""Row numbers that a message names."""


def verify(
    layout: RunLayout,
    expected: Mapping[str, int | None],
    *,
    counts: Mapping[str, Any] | None = None,
) -> list[str]:
    """Every disagreement between the outputs and the input, a line each; none: all is well.

    `expected`: rows of each shard, None where only the shard's last part tells. `counts`: totals
    to compare with, `num_rows` and `num_failed`, as the manifest has them. Rows in the journal
    count as output rows: the next start publishes them.
    """
    try:
        return look(layout, lambda run: list(_problems(run, expected, counts)))
    except DataError as exc:
        return list(exc.problems)


def _problems(
    run: Snapshot, expected: Mapping[str, int | None], counts: Mapping[str, Any] | None
) -> Iterator[str]:
    yield from _file_problems(run)
    rows: dict[PartKey, np.ndarray] = {}
    num_failed = 0
    for key in run.part_keys():
        try:
            rows[key], failed = _rows_of(run, key)
        except DataError as exc:
            yield from exc.problems
            continue
        num_failed += failed
        yield from _part_problems(run, key, rows[key])
    for shard, keys in groupby(rows, key=lambda key: key.shard):
        if shard not in expected:
            yield f"{shard}: has output rows, but is no shard of the input"
            continue
        parts = list(keys)
        yield from _shard_problems(run, parts, [rows[key] for key in parts], expected[shard])
    for shard, num_rows in expected.items():
        if num_rows != 0 and not any(key.shard == shard for key in rows):
            missing = "its rows are" if num_rows is None else f"{num_rows:,} rows are"
            yield f"{shard}: {missing} missing from the output; run the job again"
    yield from _count_problems(run, sum(map(len, rows.values())), num_failed, counts)


def _file_problems(run: Snapshot) -> Iterator[str]:
    """Files with other columns than the rest."""
    for path in part_files(run.layout):
        with _opened(path) as file:
            schema = file.schema_arrow
        if not schema.equals(run.columns.schema):
            yield f"{path}: has other columns than the first part: {_differences(run, schema)}"


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    """The file, open. Raises DataError where it cannot be read."""
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as exc:
        raise DataError(
            f"{path}: cannot be read ({str(exc).splitlines()[0]}); remove it, and the same command"
            " generates its rows again"
        ) from exc


def _differences(run: Snapshot, schema: pa.Schema) -> str:
    ours = {field.name: str(field.type) for field in run.columns.schema}
    theirs = {field.name: str(field.type) for field in schema}
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    return (
        ", ".join(
            f"'{name}' {theirs.get(name, 'absent')} instead of {ours.get(name, 'absent')}"
            for name in names
        )
        or "their order"
    )


def _rows_of(run: Snapshot, key: PartKey) -> tuple[np.ndarray, int]:
    """Row numbers of a part, file and journal together in file order, and how many failed."""
    rows = np.empty(0, dtype=np.int64)
    num_failed = 0
    info = run.info(key)
    if info is not None:
        names = [run.columns.name(name) for name in ("row", "shard", "error_type")]
        path = run.layout.part(*key)
        with _opened(path) as file:
            table = file.read(columns=names)
        rows = table.column(names[0]).to_numpy()
        num_failed = table.num_rows - table.column(names[2]).null_count
        if pc.any(pc.not_equal(table.column(names[1]), key.shard)).as_py():
            raise DataError(f"{path}: holds rows of another shard than {key.shard}")
        if (table.num_rows, num_failed) != (info.num_rows, info.counts.num_failed):
            raise DataError(
                f"{path}: its footer counts {info.num_rows:,} rows, {info.counts.num_failed:,} of "
                f"them failed; it holds {table.num_rows:,} and {num_failed:,}"
            )
    pending = run.pending(key)
    return (rows, num_failed) if pending is None else (pending.done.rows(), num_failed)


def _part_problems(run: Snapshot, key: PartKey, rows: np.ndarray) -> Iterator[str]:
    place = f"{run.layout.part(*key)}"
    if len(rows) and rows.min() < key.start_row:
        yield f"{place}: holds rows before its first row {key.start_row}"
    doubled = rows[1:][rows[1:] == rows[:-1]]
    if len(doubled):
        yield f"{place}: holds rows twice: {_some(doubled)}"
    if np.any(rows[1:] < rows[:-1]):
        yield f"{place}: its rows are not in input order"


def _shard_problems(
    run: Snapshot, keys: Sequence[PartKey], rows: Sequence[np.ndarray], num_rows: int | None
) -> Iterator[str]:
    shard = keys[0].shard
    for one, other in pairwise(rows):
        if len(one) and len(other) and one[-1] >= other[0]:
            yield f"{shard}: rows {other[0]} to {one[-1]} stand in two parts"
    if num_rows is None:
        num_rows = _told_by_parts(run, keys)
    present = np.unique(np.concatenate(rows))
    if num_rows is None:
        yield f"{shard}: its end has not been reached; run the job again"
        num_rows = int(present[-1]) + 1 if len(present) else 0
    missing = np.setdiff1d(np.arange(num_rows), present, assume_unique=True)
    if len(missing):
        yield f"{shard}: {len(missing):,} rows have no output row: {_some(missing)}"
    extra = present[present >= num_rows]
    if len(extra):
        yield f"{shard}: has {num_rows:,} rows, but there are output rows beyond: {_some(extra)}"


def _told_by_parts(run: Snapshot, keys: Sequence[PartKey]) -> int | None:
    """Rows of a shard by the extent of its last part."""
    pending, info = run.pending(keys[-1]), run.info(keys[-1])
    extent = pending.extent if pending else info.extent if info else None
    return None if extent is None else extent.shard_rows


def _count_problems(
    run: Snapshot, num_rows: int, num_failed: int, counts: Mapping[str, Any] | None
) -> Iterator[str]:
    if any(run.pending(key) for key in run.part_keys()):
        return
    if counts is not None and (num_rows, num_failed) != (counts["num_rows"], counts["num_failed"]):
        yield (
            f"{run.layout.manifest}: counts {counts['num_rows']:,} rows, {counts['num_failed']:,} "
            f"of them failed; the parts hold {num_rows:,} and {num_failed:,}"
        )
    in_batches = int(pc.sum(run.batches().column("num_rows"), min_count=0).as_py())
    made = num_rows + run.num_superseded()
    if in_batches != made:
        yield (
            f"{run.layout.batches}: its batches count {in_batches:,} rows; the outputs were made "
            f"of {made:,}, rows that a retry replaced included"
        )


def _some(rows: np.ndarray) -> str:
    more = f" and {len(rows) - _SHOWN:,} more" if len(rows) > _SHOWN else ""
    return ", ".join(str(row) for row in rows[:_SHOWN]) + more
