"""`compare.json` and `compare.parquet`: a comparison for programs, and its trials as a table.

They stand beside the outputs of the job's runs, and touch neither these nor the lock: a comparison
may be made before, between or after runs. A sweep's files (`tune_report.py`) go to the same place.
"""

import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from batchgen.bench.comparison import Comparison
from batchgen.bench.trials import Trial
from batchgen.config.models import JobConfig
from batchgen.errors import DataError
from batchgen.output.disk import make_folder, try_folder, write_atomically
from batchgen.output.layout import RunLayout
from batchgen.run.options import RunOptions
from batchgen.run.planning import output_path

if TYPE_CHECKING:
    import pyarrow as pa

JSON_NAME: Final = "compare.json"
TABLE_NAME: Final = "compare.parquet"
COUNTS: Final = ("batch_size", "num_preemptions", "num_rows", "num_failed", "num_steps", "repeat")


def result_folder(job: JobConfig, asked_for: Path | None) -> Path:
    """Where results go: the folder asked for, else the job's `output.path`.

    Ask before anything is measured. Raises DataError where something else than runs lives in
    `output.path`, and where no file can be written into the folder.
    """
    if asked_for is None or is_run_folder(asked_for, job):
        folder = output_path(job, RunOptions())
    else:
        folder = asked_for
    if folder.is_file():
        raise DataError(f"{folder}: is a file; name a directory for the results")
    try_folder(folder)
    return folder


def is_run_folder(folder: Path, job: JobConfig) -> bool:
    """Whether this is the directory of the job's runs."""
    return os.path.realpath(folder) == os.path.realpath(job.output.path)


def make_result_folder(folder: Path, job: JobConfig) -> None:
    """Create it; a run that comes later has to find that its directory is its own.

    Raises DataError where that cannot be.
    """
    make_folder(folder, in_run=False)
    if is_run_folder(folder, job):
        make_folder(RunLayout(folder).hidden, in_run=False)


def save_comparison(comparison: Comparison, folder: Path, job: JobConfig) -> tuple[Path, Path]:
    """Write both files into the folder, which is created; their paths.

    Raises DataError where the disk does not let them be written.
    """
    import pyarrow.parquet as pq

    make_result_folder(folder, job)
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    text = orjson.dumps(comparison.to_json(), option=options, default=str)
    table = trial_table(comparison)
    paths = folder / JSON_NAME, folder / TABLE_NAME
    write_atomically(paths[0], lambda file: file.write(text), in_run=False)
    write_atomically(
        paths[1], lambda file: pq.write_table(table, file, compression="zstd"), in_run=False
    )
    return paths


def trial_table(comparison: Comparison) -> "pa.Table":
    """One row for each trial: the way, the repeat, then the numbers of the trial."""
    import pyarrow as pa

    return pa.Table.from_pylist(list(_trial_rows(comparison)), schema=trial_schema())


def trial_schema() -> "pa.Schema":
    """Arrow schema of `compare.parquet`."""
    import pyarrow as pa

    def arrow_type(name: str) -> pa.DataType:
        if name == "way":
            return pa.string()
        is_tokens = name.startswith("num_") and name.endswith("_tokens")
        return pa.int64() if name in COUNTS or is_tokens else pa.float64()

    names = ["way", "batch_size", "arrival_rows_per_s", "repeat"]
    names += [field.name for field in fields(Trial) if field.name not in ("rows", *names)]
    return pa.schema([(name, arrow_type(name)) for name in names])


def _trial_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    names = [field.name for field in fields(Trial) if field.name != "rows"]
    for way, trials in comparison.trials.items():
        for repeat, trial in enumerate(trials, start=1):
            yield {
                **{name: getattr(trial, name) for name in names},
                "arrival_rows_per_s": way.arrival_rows_per_s,
                "repeat": repeat,
            }
