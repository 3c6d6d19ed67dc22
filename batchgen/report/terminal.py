"""The report in a terminal: the same facts and tables, and small curves of block characters.

What comes out of here is text; the command line prints it, and makes the text of strangers in it
harmless on the way (`cli/output.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from batchgen.monitor.printable import shortened
from batchgen.report.curves import thinned
from batchgen.report.facts import STATES, summary_facts
from batchgen.report.records import Curve, Report
from batchgen.report.tables import (
    Cell,
    Table,
    batch_table,
    change_table,
    distribution_table,
    measure_table,
    run_table,
    sweep_table,
)
from batchgen.report.units import count, counted, figure, moment, share, size

BLOCKS: Final = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS: Final = "_.-=+*#@"
GAP: Final = " "
CURVE_CHARS: Final = 48
MAX_ROWS: Final = 12
"""Lines of a table; report.html has more."""
_BATCH_KEYS: Final = (
    "batch_id",
    "num_rows",
    "num_failed",
    "wall_s",
    "rows_per_s",
    "output_tokens_per_s",
    "latency_s_p50",
    "latency_s_p95",
    "num_running_mean",
    "kv_cache_usage_max",
)
_RUN_KEYS: Final = (
    "run_id",
    "status",
    "exit_code",
    "num_rows",
    "generate_s",
    "rows_per_s",
    "output_tokens_per_s",
    "num_running_mean",
    "roofline_fraction",
)
_CURVES: Final = {
    "output_tokens_per_s": "output tokens/s",
    "rows_per_s": "rows/s",
    "num_running": "slots in use",
    "kv_cache_usage": "KV cache, peak",
    "latency_s_p95": "latency p95, s",
    "cached_share": "prefix cache",
}
_SHARES: Final = ("kv_cache_usage", "cached_share")


@dataclass(frozen=True, slots=True)
class Section:
    """A piece of the report: a heading, then pairs, lines or a table, whichever it has."""

    title: str = ""
    pairs: tuple[tuple[str, str], ...] = ()
    lines: tuple[str, ...] = ()
    table: Table | None = None


def sections(report: Report, *, is_unicode: bool = True) -> Iterator[Section]:
    """The report from top to bottom. `is_unicode`: the terminal shows block characters."""
    head = (("job", report.name), ("path", report.path), ("state", _state(report)))
    facts = tuple((fact.name, _fact(fact.value, fact.detail)) for fact in summary_facts(report))
    yield Section(pairs=(*head, *facts))
    for finding in report.findings:
        part = "" if finding.share is None else f" ({share(finding.share)} of the time)"
        yield Section(
            f"diagnosis, {finding.kind}: {finding.summary}{part}",
            lines=(finding.evidence, finding.remedy),
        )
    yield from _comparison(report)
    yield from _over_time(report, BLOCKS if is_unicode else ASCII_BLOCKS)
    if report.distributions:
        yield Section("lengths and latencies", table=distribution_table(report))
    yield from _ends(report)
    yield from _tables(report)
    yield from _provenance(report)
    if report.notes:
        yield Section("notes", lines=report.notes)


def _state(report: Report) -> str:
    return STATES.get(report.state, report.state)


def _fact(value: str, detail: str) -> str:
    return f"{value}  ({detail})" if detail else value


def _comparison(report: Report) -> Iterator[Section]:
    if report.comparison is None:
        return
    yield Section(
        "the newest run and the one before",
        lines=(report.comparison.summary,),
        table=measure_table(report),
    )
    if report.comparison.changes:
        yield Section("settings that changed", table=change_table(report))


def _over_time(report: Report, blocks: str) -> Iterator[Section]:
    curves = [curve for name in _CURVES if (curve := report.curve(name)) is not None]
    if curves:
        pairs = tuple((_CURVES[curve.name], sparkline(curve, blocks)) for curve in curves)
        yield Section("over time", pairs=pairs)


def sparkline(curve: Curve, blocks: str = BLOCKS, num_chars: int = CURVE_CHARS) -> str:
    """A curve as a row of characters from 0 to its highest value, then its range in numbers."""
    import numpy as np

    edges, levels = np.array(curve.edges_s), np.array(curve.mean, dtype=float)
    if len(levels) > num_chars:
        edges, levels, _, _ = thinned(edges, levels, num_chars)
    top = np.nanmax(levels) or 1.0
    marks = "".join(
        GAP if np.isnan(level) else blocks[min(int(level / top * len(blocks)), len(blocks) - 1)]
        for level in levels
    )
    known = [
        (low, high)
        for low, high in zip(curve.min, curve.max, strict=True)
        if low is not None and high is not None
    ]
    lowest, highest = min(low for low, _ in known), max(high for _, high in known)
    shown = share if curve.name in _SHARES else figure
    return f"{marks}  {shown(lowest)} to {shown(highest)}"


def _ends(report: Report) -> Iterator[Section]:
    if report.finishes:
        pairs = tuple(
            (finish.reason, f"{count(finish.num_completions)} ({share(finish.share)})")
            for finish in report.finishes
        )
        yield Section("finish reasons", pairs=pairs)
    for failure in report.failures:
        meaning = f"the row {failure.meaning}" if failure.meaning else ""
        examples = (
            f"{example.shard}:{example.row}: {shortened(example.text, 160)}"
            for example in failure.examples
        )
        retry = "; may go away: batchgen run JOB --retry-failed" if failure.is_retryable else ""
        yield Section(
            f"failed, {failure.error_type}: {count(failure.num_rows)} ({share(failure.share)})",
            lines=(meaning + retry, *examples),
        )


def _tables(report: Report) -> Iterator[Section]:
    if report.batches:
        table = selected(batch_table(report), _BATCH_KEYS)
        yield Section("slowest batches", table=slowest(table, "output_tokens_per_s"))
    if len(report.runs) > 1:
        yield Section("runs", table=selected(run_table(report), _RUN_KEYS))
    for sweep in report.sweeps:
        advice = (f"recommended: -s {override}" for override in sweep.overrides)
        lines = (*advice, *sweep.remarks)
        yield Section(f"batchgen {sweep.kind}", lines=lines, table=sweep_table(sweep))


def selected(table: Table, keys: Sequence[str]) -> Table:
    """Those columns of a table that fit beside each other; `keys` are column keys."""
    places = [index for index, column in enumerate(table.columns) if column.key in keys]
    return Table(
        table.name,
        tuple(table.columns[place] for place in places),
        tuple(tuple(row[place] for place in places) for row in table.rows),
    )


def slowest(table: Table, key: str) -> Table:
    """The rows with the lowest values of a column, unknown ones last; at most `MAX_ROWS`."""
    keys = [column.key for column in table.columns]
    if key not in keys:
        return Table(table.name, table.columns, table.rows[:MAX_ROWS])
    place = keys.index(key)

    def rank(row: tuple[Cell, ...]) -> float:
        value = row[place].value
        return inf if value is None else value

    return Table(table.name, table.columns, tuple(sorted(table.rows, key=rank)[:MAX_ROWS]))


def _provenance(report: Report) -> Iterator[Section]:
    made = report.provenance
    if not report.runs:
        return
    engine = made.engine or {}
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    model = (made.job.get("model") or {}).get("name")
    pairs = [
        ("first run", f"{moment(made.created_at)} UTC"),
        ("model", str(model)),
        ("engine", f"{engine.get('name')} {engine.get('version')}" if engine else count(None)),
        ("versions", versions),
        ("seed", count(None) if made.seed is None else str(made.seed)),
        ("input", f"{counted(made.num_inputs, 'shard')}, {size(made.input_bytes)}"),
    ]
    yield Section("provenance", pairs=tuple(pairs))
