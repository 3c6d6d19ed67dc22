"""The tables of a report, as cells that a page can sort and a terminal can print."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from batchgen.report.records import Report, Sweep
from batchgen.report.units import change, count, figure, moment, share, size

Format = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `key` is its name in the answer of `report --json`."""

    key: str
    head: str
    is_number: bool


@dataclass(frozen=True, slots=True)
class Cell:
    """What is shown, and what it is sorted by (None: by its text, or not known)."""

    text: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, as many in each as there are columns."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


BATCH_COLUMNS: Final[Mapping[str, tuple[str, Format]]] = {
    "batch_id": ("batch", str),
    "started_at": ("started (UTC)", moment),
    "closed_by": ("closed by", str),
    "num_rows": ("rows", count),
    "num_failed": ("failed", count),
    "wall_s": ("wall s", figure),
    "rows_per_s": ("rows/s", figure),
    "output_tokens_per_s": ("output tok/s", figure),
    "total_tokens_per_s": ("all tok/s", figure),
    "num_prompt_tokens": ("prompt tok", count),
    "num_cached_tokens": ("cached tok", count),
    "num_output_tokens": ("output tok", count),
    "ttft_s_p50": ("ttft s p50", figure),
    "ttft_s_p95": ("ttft s p95", figure),
    "tpot_s_p50": ("tpot s p50", figure),
    "tpot_s_p95": ("tpot s p95", figure),
    "latency_s_p50": ("latency s p50", figure),
    "latency_s_p95": ("latency s p95", figure),
    "queue_s_p50": ("queue s p50", figure),
    "num_running_mean": ("slots in use", figure),
    "drain_s": ("drain s", figure),
    "kv_cache_usage_max": ("KV peak", share),
    "num_preemptions": ("preempted", count),
    "tail_s": ("tail s", figure),
    "blocked_s": ("blocked s", figure),
    "host_s": ("host s", figure),
    "num_stopped_early": ("stopped early", count),
    "read_s": ("read s", figure),
    "render_s": ("render s", figure),
    "write_s": ("write s", figure),
    "rss_bytes": ("memory", size),
    "run_id": ("run", str),
}
RUN_COLUMNS: Final[Mapping[str, tuple[str, Format]]] = {
    "run_id": ("run", str),
    "started_at": ("started (UTC)", moment),
    "status": ("status", str),
    "exit_code": ("exit", count),
    "num_rows": ("rows", count),
    "generate_s": ("generate s", figure),
    "wall_s": ("wall s", figure),
    "rows_per_s": ("rows/s", figure),
    "output_tokens_per_s": ("output tok/s", figure),
    "total_tokens_per_s": ("all tok/s", figure),
    "num_running_mean": ("slots in use", figure),
    "slots": ("of slots", count),
    "kv_cache_usage_max": ("KV peak", share),
    "roofline_fraction": ("of roofline", share),
    "engine_restarts": ("restarts", count),
    "feed": ("feed", str),
    "batch_size": ("batch size", count),
}
MEASURE_NAMES: Final[Mapping[str, tuple[str, Format]]] = {
    "output_tokens_per_s": ("output tokens/s", figure),
    "rows_per_s": ("rows/s", figure),
    "total_tokens_per_s": ("all tokens/s", figure),
    "num_rows": ("rows", count),
    "num_prompt_tokens_per_row": ("prompt tokens a row", figure),
    "num_output_tokens_per_row": ("output tokens a row", figure),
    "cached_share": ("out of the prefix cache", share),
    "num_running_mean": ("slots in use", figure),
    "kv_cache_usage_max": ("KV cache, peak", share),
    "roofline_fraction": ("of the roofline", share),
}
SWEEP_COLUMNS: Final[Mapping[str, Mapping[str, tuple[str, Format]]]] = {
    "compare": {
        "name": ("way", str),
        "batch_size": ("rows at once", count),
        "arrival_rows_per_s": ("arriving/s", figure),
        "num_rows": ("rows", count),
        "wall_s": ("wall s", figure),
        "wall_s_spread": ("spread", share),
        "rows_per_s": ("rows/s", figure),
        "output_tokens_per_s": ("output tok/s", figure),
        "speedup": ("speed-up", figure),
        "ttft_s_p50": ("ttft s p50", figure),
        "latency_s_p50": ("latency s p50", figure),
        "latency_s_p95": ("latency s p95", figure),
        "num_running_mean": ("slots in use", figure),
        "roofline_fraction": ("of roofline", share),
    },
    "tune": {
        "num_running": ("in flight", count),
        "rows_per_s": ("rows/s", figure),
        "output_tokens_per_s": ("output tok/s", figure),
        "spread": ("spread", share),
        "ttft_s_p95": ("ttft s p95", figure),
        "tpot_s_p95": ("tpot s p95", figure),
        "latency_s_p50": ("latency s p50", figure),
        "latency_s_p95": ("latency s p95", figure),
        "kv_cache_usage_max": ("KV peak", share),
        "num_preemptions": ("preempted", count),
    },
}
DISTRIBUTION_NAMES: Final = {
    "num_prompt_tokens": "prompt tokens",
    "num_output_tokens": "output tokens",
    "ttft_s": "s to first token",
    "latency_s": "s to last token",
}


def batch_table(report: Report) -> Table:
    """The batches that are shown, one a row."""
    return _of_records("batches", BATCH_COLUMNS, report.batches)


def run_table(report: Report) -> Table:
    """The runs, the newest first."""
    return _of_records("runs", RUN_COLUMNS, report.runs[::-1])


def measure_table(report: Report) -> Table:
    """The newest run beside the one before it; empty without two runs."""
    measures = report.comparison.measures if report.comparison else ()
    rows = []
    for measure in measures:
        if measure.before is None and measure.after is None:
            continue
        head, shown = MEASURE_NAMES.get(measure.name, (measure.name, figure))
        values = (measure.before, measure.after)
        cells = (
            *(Cell(shown(value), value) for value in values),
            Cell(change(measure.ratio), measure.ratio),
        )
        rows.append((Cell(head), *cells))
    heads = (
        Column("measure", "measure", False),
        Column("before", "before", True),
        Column("after", "newest", True),
        Column("ratio", "change", True),
    )
    return Table("measures", heads, tuple(rows))


def change_table(report: Report) -> Table:
    """Settings in which the two newest runs differ."""
    changes = report.comparison.changes if report.comparison else ()
    names = (("key", "setting"), ("before", "before"), ("after", "newest"))
    heads = tuple(Column(key, head, False) for key, head in names)
    rows = tuple((Cell(item.key), _shown(item.before), _shown(item.after)) for item in changes)
    return Table("changes", heads, rows)


def distribution_table(report: Report) -> Table:
    """Mean and percentiles of lengths and latencies."""
    keys = ("num_values", "mean", "min", "p50", "p95", "p99", "max")
    percentiles = (Column(key, key, True) for key in keys[1:])
    heads = (Column("name", "of", False), Column("num_values", "rows", True), *percentiles)
    rows = []
    for item in report.distributions:
        cells = [Cell(figure(getattr(item, key)), getattr(item, key)) for key in keys[1:]]
        name = Cell(DISTRIBUTION_NAMES.get(item.name, item.name))
        rows.append((name, Cell(count(item.num_values), item.num_values), *cells))
    return Table("distributions", heads, tuple(rows))


def input_table(report: Report) -> Table:
    """The shards, as many as the report holds."""
    heads = (
        Column("name", "shard", False),
        Column("format", "format", False),
        Column("num_bytes", "size", True),
        Column("num_rows", "rows", True),
    )
    rows = tuple(
        (
            Cell(item.name),
            Cell(item.format or ""),
            Cell(size(item.num_bytes), item.num_bytes),
            Cell(count(item.num_rows), item.num_rows),
        )
        for item in report.provenance.inputs
    )
    return Table("inputs", heads, rows)


def sweep_table(sweep: Sweep) -> Table:
    """The points of a result of `compare` or `tune`."""
    return _of_rows(sweep.kind, SWEEP_COLUMNS[sweep.kind], sweep.points)


def _of_records(
    name: str, formats: Mapping[str, tuple[str, Format]], records: Iterable[object]
) -> Table:
    """A row for each record."""
    rows = [{key: getattr(record, key) for key in formats} for record in records]
    return _of_rows(name, formats, rows)


def _of_rows(
    name: str, formats: Mapping[str, tuple[str, Format]], rows: Sequence[Mapping[str, Any]]
) -> Table:
    """A row for each mapping; columns in which none has anything are left out."""
    keys = [key for key in formats if any(row.get(key) not in (None, "") for row in rows)]
    heads = tuple(
        Column(key, formats[key][0], formats[key][1] not in (str, moment) or key == "batch_id")
        for key in keys
    )
    cells = (tuple(_cell(row.get(key), formats[key][1]) for key in keys) for row in rows)
    return Table(name, heads, tuple(cells))


def _cell(value: Any, shown: Format) -> Cell:
    """A cell; a text where a number belongs is shown as it is."""
    if value is None:
        return Cell(count(None))
    if _is_number(value):
        return Cell(shown(value), value)
    return Cell(shown(value) if shown in (str, moment) else str(value))


def _shown(value: Any) -> Cell:
    """A setting, as it would be written."""
    return Cell(count(None) if value is None else str(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
