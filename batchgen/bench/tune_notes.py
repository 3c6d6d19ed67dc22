"""What one has to know to read the points of a sweep, in sentences."""

from collections.abc import Iterator, Sequence

from batchgen.bench.steady import rows_needed
from batchgen.bench.sweep import Sweep
from batchgen.bench.sweep_points import SweepPoint
from batchgen.bench.sweep_rows import SweepRows
from batchgen.bench.workload import BenchSession
from batchgen.config.models import JobConfig
from batchgen.monitor.printable import counted


def notes_on_rows(session: BenchSession, rows: SweepRows) -> Iterator[str]:
    """Rows that are left out, and rows that are repeated."""
    workload, slots = session.workload, session.engine.info.max_num_seqs
    needed = rows_needed(slots)
    if workload.num_refused:
        yield (
            f"{workload.num_refused:,} of {workload.num_looked_at:,} rows looked at would be"
            " refused; they are left out"
        )
    if len(rows) < needed:
        yield (
            f"the sample has {len(rows):,} different rows, and all"
            f" {slots:,} slots need {needed:,}: beyond that rows are repeated, each with two other"
            " tokens so that the prefix cache does not know it"
        )


def notes_on_points(points: Sequence[SweepPoint], sweep: Sweep | None) -> Iterator[str]:
    """Why the sweep ended where it did, and what was in the way."""
    if sweep is None or not points:
        return
    if sweep.flat_from is not None:
        yield (
            f"beyond {sweep.flat_from:,} in flight nothing was gained above the noise of"
            f" {sweep.noise:.1%}"
        )
    full = next((point for point in points if point.kv_limited), None)
    if full is not None:
        yield f"from {full.num_running:,} in flight on the KV cache was full"
    failed = max(points, key=lambda point: point.num_failed)
    if failed.num_failed:
        yield f"{counted(failed.num_failed, 'row')} failed with {failed.num_running:,} in flight"
    if sweep.left_out:
        numbers = ", ".join(f"{number:,}" for number in sorted(sweep.left_out))
        yield f"--max-minutes left no time for all trials with {numbers} in flight"


def notes_on_job(job: JobConfig) -> Iterator[str]:
    """In what a run of this job will differ from the sweep."""
    if job.batch.feed != "continuous":
        yield (
            f"batch.feed is '{job.batch.feed}', which lets slots stand empty; the sweep holds for"
            " 'continuous'"
        )
    window, slots = job.batch.window, job.model.max_num_seqs
    if window == "auto" or slots is None or window > slots:
        yield (
            "in a run rows also wait for a slot (batch.window is twice the slots by default), and"
            " its latency_s holds that wait; latencies here are those of a server whose callers"
            " wait outside"
        )
