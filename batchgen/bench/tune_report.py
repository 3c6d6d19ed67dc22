"""The result of `batchgen tune`, and the two files that it leaves: `tune.json`, `tune.parquet`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from batchgen.bench.proposals import Proposal
from batchgen.bench.recommendation import Recommendation
from batchgen.bench.saving import make_result_folder
from batchgen.bench.sweep_points import SweepPoint, points_schema
from batchgen.config.models import JobConfig
from batchgen.output.disk import write_atomically

JSON_NAME: Final = "tune.json"
TABLE_NAME: Final = "tune.parquet"


@dataclass(frozen=True, slots=True)
class TuneReport:
    """What a sweep found; `batchgen tune --json` prints these fields under the same names."""

    kind: str
    """`tune`."""
    job: str
    points: tuple[SweepPoint, ...]
    """By concurrency."""
    recommended: Recommendation | None
    """None where nothing was measured, or the sweep ended while more in flight still gained."""
    overrides: tuple[str, ...]
    """What is recommended as `-s` takes it: `key=value`."""
    proposals: tuple[Proposal, ...]
    notes: tuple[str, ...]
    """What one has to know to read the points, sentences."""
    left_out: tuple[int, ...]
    """Concurrencies for which the budget was too small, or too small for all repeats."""
    noise: float | None
    """Differences of throughput up to this share say nothing."""
    tokens_per_row: float | None
    """Output tokens of a row on average."""
    engine_starts: int
    engine_start_s: float | None
    """Seconds that the first start took."""
    measured_s: float
    """Seconds after it, on the engine's clock."""
    stopped: str | None
    """Why the sweep ended early, a sentence; None where it came to its end."""
    exit_code: int
    engine: Mapping[str, Any] | None
    """The engine, its version and effective settings."""

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self)


def overrides_for(
    job: JobConfig,
    num_running: int | None,
    sequences_per_row: int,
    proposals: Sequence[Proposal],
) -> tuple[str, ...]:
    """What to change in the job: slots for the recommended concurrency, and what has paid.

    A window that the job fixes below that would leave slots free.
    """
    if num_running is None:
        return ()
    window = job.batch.window
    return (
        f"model.max_num_seqs={num_running * sequences_per_row}",
        *(("batch.window=auto",) if window != "auto" and window < num_running else ()),
        *(p.override for p in proposals if p.pays and p.key != "model.max_num_seqs"),
    )


def save_report(report: TuneReport, folder: Path, job: JobConfig) -> tuple[Path, Path]:
    """Write both files into the folder, which is created; their paths.

    Raises DataError where the disk does not let them be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    make_result_folder(folder, job)
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    text = orjson.dumps(report.to_dict(), option=options)
    table = pa.Table.from_pylist([asdict(p) for p in report.points], schema=points_schema())
    paths = folder / JSON_NAME, folder / TABLE_NAME
    write_atomically(paths[0], lambda file: file.write(text), in_run=False)
    write_atomically(paths[1], lambda file: pq.write_table(table, file), in_run=False)
    return paths
