"""`compare.json` and `compare.parquet`: a comparison for programs, and its trials as a table.

They stand beside the outputs of the job's runs, and touch neither these nor the lock: a comparison
may be made before, between or after runs.
"""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from batchgen.bench.comparison import Comparison
from batchgen.bench.trials import Trial
from batchgen.config.models import JobConfig
from batchgen.output.disk import make_folder, write_atomically
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

    Raises DataError where something else than runs lives in `output.path`.
    """
    return asked_for if asked_for is not None else output_path(job, RunOptions())


def save_comparison(comparison: Comparison, folder: Path, job: JobConfig) -> tuple[Path, Path]:
    """Write both files into the folder, which is created; their paths.

    Raises DataError where the disk does not let them be written.
    """
    import pyarrow.parquet as pq

    make_folder(folder)
    if folder == output_path(job, RunOptions()):
        make_folder(RunLayout(folder).hidden)  # by this a later run knows the folder for its own
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    text = orjson.dumps(comparison.to_json(), option=options, default=str)
    table = trial_table(comparison)
    paths = folder / JSON_NAME, folder / TABLE_NAME
    write_atomically(paths[0], lambda file: file.write(text))
    write_atomically(paths[1], lambda file: pq.write_table(table, file, compression="zstd"))
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
