"""The tables of a run directory as pandas DataFrames; any Parquet reader takes the files."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds

from batchgen.errors import DataError
from batchgen.output.counts import Counts
from batchgen.output.layout import RunLayout
from batchgen.output.snapshot import look

if TYPE_CHECKING:
    import pandas as pd


def read_outputs(path: str | Path) -> "pd.DataFrame":
    """The output rows of a run directory, in input order.

    While a run goes on these are the rows of the published parts; a part is published when it is
    complete, and at the end of the run.
    """
    layout = RunLayout(Path(path))
    files = part_files(layout)
    if not files:
        raise DataError(
            f"{layout.outputs}: holds no part; give the directory that is output.path of a job"
        )
    frame: pd.DataFrame = ds.dataset([str(file) for file in files]).to_table().to_pandas()
    return frame


def read_batches(path: str | Path) -> "pd.DataFrame":
    """The batch records of a run directory by batch id; those of a living run as well."""
    frame: pd.DataFrame = look(RunLayout(Path(path)), lambda run: run.batches()).to_pandas()
    return frame


def read_totals(path: str | Path) -> Counts:
    """Counts over all finished rows of a run directory, published or not."""
    return look(RunLayout(Path(path)), lambda run: run.totals())


def part_files(layout: RunLayout) -> list[Path]:
    """Files of the parts, in input order."""
    return sorted(layout.outputs.rglob("[!.]*.parquet"))
