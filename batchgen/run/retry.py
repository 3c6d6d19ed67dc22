"""Which finished rows are done again: `--retry-failed` and `--where`.

`--where` is a pandas query over the columns that batchgen adds, part by part, so that memory stays
that of one part. Rows that share a completion (copies of an equal prompt) are retried as a group:
the selection of one selects its leader and all copies.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from batchgen.errors import UsageError
from batchgen.records import RETRYABLE
from batchgen.run.options import RunOptions

if TYPE_CHECKING:
    import pandas as pd

Selection = dict[tuple[str, int], set[int]]
"""Rows by (shard, start row of the part)."""

QUERY_COLUMNS = (
    "shard", "row", "output", "finish_reason", "num_prompt_tokens", "num_output_tokens",
    "num_cached_tokens", "ttft_s", "latency_s", "run_id", "batch_id", "duplicate_of",
    "error_type", "error", "json_valid", "stopped_by",
)  # fmt: skip


def select_rows(
    options: RunOptions, parts: Mapping[tuple[str, int], Path], *, prefix: str
) -> Selection | None:
    """The rows to redo, by part; None when the options ask for no retry.

    Raises UsageError where `--where` is no query over the added columns.
    """
    query = _query(options)
    if query is None:
        return None
    if not parts:
        _apply(query, _no_rows(), options)  # a mistake in it shows on the first night as well
    selection: Selection = {}
    groups: set[str] = set()
    for key, path in parts.items():
        frame = _read_added(path, prefix)
        chosen = _apply(query, frame, options)
        if len(chosen):
            selection.setdefault(key, set()).update(chosen["row"].tolist())
            groups.update(_group_keys(chosen))
    if groups and options.retry_failed is None:
        _add_groups(selection, groups, parts, prefix)
    return selection


def _query(options: RunOptions) -> str | None:
    if options.retry_failed is not None and options.where is not None:
        raise UsageError("--retry-failed and --where exclude each other; give one of them")
    if options.retry_failed == "all":
        return "error_type.notnull()"
    if options.retry_failed == "retryable":
        return f"error_type in {sorted(RETRYABLE)}"
    return options.where


def _no_rows() -> "pd.DataFrame":
    """The added columns of an output without rows."""
    import pandas as pd

    counts = {name: "Int64" for name in QUERY_COLUMNS if name.startswith("num_")}
    types = {**counts, "row": "Int64", "batch_id": "Int64", "ttft_s": "float", "latency_s": "float"}
    columns = {name: pd.Series(dtype=types.get(name, "object")) for name in QUERY_COLUMNS}
    return pd.DataFrame(columns)


def _read_added(path: Path, prefix: str) -> "pd.DataFrame":
    """The added columns of a part, without their prefix."""
    with pq.ParquetFile(path) as part:
        present = set(part.schema_arrow.names)
        names = [prefix + name for name in QUERY_COLUMNS if prefix + name in present]
        frame: pd.DataFrame = part.read(columns=names).to_pandas()
    return frame.rename(columns=lambda name: name.removeprefix(prefix))


def _apply(query: str, frame: "pd.DataFrame", options: RunOptions) -> "pd.DataFrame":
    try:
        mask = frame.eval(query, engine="python")
    except Exception as exc:
        raise UsageError(
            f"--where '{options.where}': {exc}; it is a pandas query over "
            f"{', '.join(frame.columns)}, for example: finish_reason == 'length'"
        ) from exc
    if str(getattr(mask, "dtype", "")) not in ("bool", "boolean") or len(mask) != len(frame):
        raise UsageError(
            f"--where '{options.where}': is no condition on each row; write one like "
            "finish_reason == 'length'"
        )
    return frame[mask.fillna(False)]


def _group_keys(frame: "pd.DataFrame") -> Iterable[str]:
    """`shard:row` of each row's leader (a row without one may lead others)."""
    own = frame["shard"].astype(str) + ":" + frame["row"].astype(str)
    keys: list[str] = frame["duplicate_of"].fillna(own).tolist()
    return keys


def _add_groups(
    selection: Selection, groups: set[str], parts: Mapping[tuple[str, int], Path], prefix: str
) -> None:
    for key, path in parts.items():
        frame = _read_added(path, prefix)
        members = frame[[name in groups for name in _group_keys(frame)]]
        if len(members):
            selection.setdefault(key, set()).update(members["row"].tolist())
