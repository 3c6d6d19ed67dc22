"""`batchgen init`: a commented job file for the data at hand."""

from pathlib import Path
from typing import Annotated, Final

import typer

from batchgen.cli.options import output_of
from batchgen.errors import DataError, UsageError

EPILOG: Final = """\b
Examples:
  batchgen init data/docs.parquet > job.yaml
  batchgen init data/*.parquet data/*.jsonl -o jobs/summarize.yaml
  batchgen init "data/**/*.jsonl.gz" -o job.yaml
"""


def init(
    ctx: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...", help="Input files, directories or globs.", show_default=False
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="Write there instead of stdout; an existing file is never replaced.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a commented job file for your data.

    It reads the columns, and takes the one with the longest texts for the documents.
    """
    from batchgen.run.starter import starter_job

    output = output_of(ctx)
    if out is not None and out.exists():
        raise UsageError(f"{out}: exists already and is not replaced; choose another -o FILE")
    text = starter_job(paths)
    if out is None:
        output.raw(text)
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as exc:
        raise DataError(f"{out}: cannot be written: {exc.strerror}") from exc
    output.line(f"wrote {out}; next: batchgen check {out}")
