"""A run directory as one `Report`: the only place that reads, so that all pictures agree.

Sources are the manifest (runs, provenance), the batches, the output rows, and what a living run
says of its progress; parts and journal are seen together, and nothing is changed, so this works
while a run holds the lock, after a kill, and on a directory without a single row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from batchgen import __version__
from batchgen.errors import DataError
from batchgen.monitor.state import read_progress, run_state
from batchgen.output.columns import load_schema
from batchgen.output.counts import Counts
from batchgen.output.layout import RunLayout
from batchgen.output.manifest import read_manifest
from batchgen.output.snapshot import Snapshot, look
from batchgen.report.arrays import floats, moment_of, total
from batchgen.report.comparison import compare_runs
from batchgen.report.curves import batch_curves
from batchgen.report.findings import findings, stored_findings
from batchgen.report.outputs import OutputLook, failures, finishes, look_at_outputs
from batchgen.report.provenance import provenance
from batchgen.report.records import Finding, Report, RunLine, Sweep
from batchgen.report.runs import run_batches, run_lines
from batchgen.report.summary import cost_of, early_stop, prefix_cache, summarize
from batchgen.report.sweeps import read_sweeps
from batchgen.stats.batch import BatchRecord, batch_schema

MAX_BATCHES: Final = 150
EACH_KIND: Final = 45
"""First, last and slowest batches that a long table shows."""
MAX_RUNS: Final = 30


@dataclass(frozen=True, slots=True)
class Sources:
    """What a run directory says, as it was read."""

    path: Path
    manifest: Mapping[str, Any]
    progress: Mapping[str, Any]
    state: str
    totals: Counts
    batches: pa.Table
    outputs: OutputLook
    sweeps: tuple[Sweep, ...]
    notes: tuple[str, ...]

    @property
    def entries(self) -> Sequence[Mapping[str, Any]]:
        """The manifest's runs, oldest first; of the one that it has no end of, what it said last.

        A run that ended in an error could not write the manifest any more.
        """
        runs = [run for run in self.manifest.get("runs") or () if "run_id" in run]
        ending = {
            "exit_code": self.progress.get("exit_code"),
            "stopped": self.progress.get("reason"),
        }
        said = self.progress.get("run_id")
        return [
            {**run, **ending} if run.get("status") == "running" and run["run_id"] == said else run
            for run in runs
        ]


def build_report(path: str | Path, *, price_per_hour: float | None = None) -> Report:
    """Report on a run directory, whatever state it is in.

    `price_per_hour` is that of what one engine runs on, in any currency. Raises DataError where
    there is neither a run nor a result of `compare` or `tune`, or a file is damaged.
    """
    layout = RunLayout.at(path)
    sweeps, notes = read_sweeps(layout.path)
    if sweeps and load_schema(layout) is None:
        sources = _without_run(layout, sweeps, notes)
    else:
        sources = look(layout, partial(_read, sweeps=sweeps, notes=notes))
    return _report(sources, price_per_hour)


def _read(snapshot: Snapshot, *, sweeps: tuple[Sweep, ...], notes: tuple[str, ...]) -> Sources:
    layout = snapshot.layout
    totals = snapshot.totals()
    progress, problem = _progress(layout)
    return Sources(
        path=layout.path,
        manifest=read_manifest(layout) or {},
        progress=progress,
        state=run_state(dict(progress) or None, is_complete=layout.success.exists()),
        totals=totals,
        batches=snapshot.batches(),
        outputs=look_at_outputs(snapshot, totals),
        sweeps=sweeps,
        notes=(*notes, *problem),
    )


def _without_run(layout: RunLayout, sweeps: tuple[Sweep, ...], notes: tuple[str, ...]) -> Sources:
    empty = batch_schema().empty_table()
    return Sources(layout.path, {}, {}, "not run", Counts(), empty, OutputLook(), sweeps, notes)


def _progress(layout: RunLayout) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    try:
        return read_progress(layout.progress) or {}, ()
    except DataError as exc:
        return {}, exc.problems


def _report(sources: Sources, price_per_hour: float | None) -> Report:
    by_run = run_batches(sources.batches)
    lines = run_lines(sources.entries, by_run, sources.state)
    summary = summarize(
        sources.totals,
        sources.progress,
        lines,
        sources.batches,
        state=sources.state,
    )
    curves, run_starts = batch_curves(sources.batches)
    shown = shown_batches(sources.batches)
    return Report(
        path=str(sources.path),
        name=str(sources.manifest.get("name") or sources.path.resolve().name),
        state=sources.state,
        generated_at=datetime.now(UTC).isoformat(timespec="seconds"),
        batchgen_version=__version__,
        summary=summary,
        findings=_findings(sources, lines),
        comparison=compare_runs(lines),
        runs=lines[-MAX_RUNS:],
        run_starts_s=run_starts,
        curves=curves,
        distributions=sources.outputs.distributions,
        finishes=finishes(sources.totals, sources.outputs),
        failures=failures(sources.totals, sources.outputs),
        prefix_cache=prefix_cache(sources.totals, sources.manifest),
        early_stop=early_stop(sources.manifest, sources.outputs.stopped_by, sources.batches),
        cost=cost_of(summary, price_per_hour),
        sweeps=sources.sweeps,
        batches=shown,
        provenance=provenance(sources.manifest),
        notes=(*sources.notes, *_left_out(sources, lines, shown)),
    )


def shown_batches(batches: pa.Table) -> tuple[BatchRecord, ...]:
    """All batches by id; of very many the first, the last and the slowest."""
    if batches.num_rows > MAX_BATCHES:
        slowest = np.argsort(floats(batches["output_tokens_per_s"]))[:EACH_KIND].tolist()
        last = range(batches.num_rows - EACH_KIND, batches.num_rows)
        places = sorted({*range(EACH_KIND), *last, *slowest})
        batches = pa.concat_tables(batches.slice(place, 1) for place in places)
    return batch_records(batches)


def batch_records(batches: pa.Table) -> tuple[BatchRecord, ...]:
    """Rows of a table of batches as records."""
    times = floats(batches["started_at"])
    lines = batches.drop_columns(["started_at"]).to_pylist()
    return tuple(
        BatchRecord.from_dict({**line, "started_at": moment_of(time).isoformat()})
        for line, time in zip(lines, times, strict=True)
    )


def _findings(sources: Sources, lines: Sequence[RunLine]) -> tuple[Finding, ...]:
    if not lines:
        return ()
    run_id = lines[-1].run_id
    stored = [entry.get("diagnosis") for entry in sources.entries if entry["run_id"] == run_id]
    if stored and isinstance(stored[0], list):
        return stored_findings(stored[0])
    run_ids = sources.batches["run_id"].to_pylist()
    # The newest run's batches are the last ones: batch ids count on over the runs.
    first = run_ids.index(run_id) if run_id in run_ids else len(run_ids)
    records = batch_records(sources.batches.slice(first))
    return findings(records, lines[-1].slots, sources.manifest.get("job") or {})


def _left_out(
    sources: Sources, lines: Sequence[RunLine], shown: Sequence[BatchRecord]
) -> tuple[str, ...]:
    notes = []
    if len(shown) < sources.batches.num_rows:
        notes.append(
            f"{sources.batches.num_rows - len(shown):,} of {sources.batches.num_rows:,} batches are"
            " left out of the table, which shows the first, the last and the slowest; all of them"
            f" are in {RunLayout(sources.path).batches}"
        )
    if len(lines) > MAX_RUNS:
        notes.append(f"{len(lines) - MAX_RUNS:,} older runs are left out of the table of runs")
    in_batches = int(total(floats(sources.batches["num_rows"])) or 0)
    if in_batches < sources.totals.num_rows:
        notes.append(
            f"{sources.totals.num_rows - in_batches:,} finished rows are in no closed batch yet"
        )
    return tuple(notes)
