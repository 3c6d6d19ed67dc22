"""`batchgen compare`: what batching buys on the job's own rows and model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from batchgen.cli.late_failure import LateFailures
from batchgen.cli.options import (
    LEAST_RATE,
    MOST_RATE,
    AsJson,
    JobPath,
    Overrides,
    Quiet,
    above_zero,
    finite,
    output_of,
)
from batchgen.cli.output import Output

if TYPE_CHECKING:
    from batchgen.bench.comparison import Comparison
    from batchgen.config.models import JobConfig

EPILOG: Final = """\b
Examples:
  batchgen compare job.yaml
  batchgen compare job.yaml --sizes 4,16,64 --rows 128 --no-static
  batchgen compare job.yaml --arrival-rate 5 --max-wait 0.5
  batchgen compare jobs/compare.yaml --repeats 1 --json

\b
Ctrl-C ends the comparison and shows what was measured so far (exit code 130). docs/compare.md
says how to read the table.
"""
ENDED_BY_SIGNAL: Final = (130, 143)


def checked_sizes(value: str | None) -> str | None:
    """`value`, if it is a list of batch sizes."""
    if value is not None:
        parse_sizes(value)
    return value


def parse_sizes(value: str) -> tuple[int, ...]:
    """Batch sizes out of `4,16,64`."""
    sizes = tuple(int(part) for part in value.split(",") if part.strip().isdecimal())
    if len(sizes) != len(value.split(",")) or min(sizes) < 2:
        raise typer.BadParameter(
            f"'{value}' is no list of sizes; write numbers from 2 on, as in 4,16,64"
            " (one row at a time is measured in any case)"
        )
    return sizes


def compare(
    ctx: typer.Context,
    job: JobPath,
    overrides: Overrides = None,
    num_rows: Annotated[
        int, typer.Option("--rows", min=1, metavar="N", help="Rows of the sample.")
    ] = 64,
    num_repeats: Annotated[
        int, typer.Option("--repeats", min=1, metavar="N", help="Times that each way is measured.")
    ] = 3,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes",
            metavar="N,N,...",
            callback=checked_sizes,
            help="Rows of a call, or in flight. Default: 2, 4, 16, 64 ... up to all slots.",
            show_default=False,
        ),
    ] = None,
    static: Annotated[
        bool,
        typer.Option(
            "--static/--no-static",
            help="Also padded batches, with Hugging Face transformers and the same weights.",
        ),
    ] = True,
    arrival_rate: Annotated[
        float | None,
        typer.Option(
            "--arrival-rate",
            min=LEAST_RATE,
            max=MOST_RATE,
            metavar="ROWS/S",
            callback=above_zero,
            help="Also rows that arrive at this rate: dynamic batches against continuous.",
            show_default=False,
        ),
    ] = None,
    max_wait: Annotated[
        float,
        typer.Option(
            "--max-wait",
            min=0.0,
            metavar="S",
            callback=finite,
            help="A dynamic batch closes after so long.",
        ),
    ] = 0.5,
    gaps: Annotated[
        Literal["exponential", "even"],
        typer.Option("--gaps", metavar="exponential|even", help="Between rows that arrive."),
    ] = "exponential",
    free_lengths: Annotated[
        bool,
        typer.Option("--free-lengths", help="Let rows end where they want; else all ways alike."),
    ] = False,
    max_minutes: Annotated[
        float,
        typer.Option(
            "--max-minutes",
            metavar="M",
            callback=above_zero,
            help="Time to stay below; the slowest ways do fewer rows for it, and say so.",
        ),
    ] = 30.0,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            help="Where compare.json and compare.parquet go. Default: the job's output.path.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure what batching buys on your rows and model.

    The same rows go one by one, in batches of several sizes, continuously, and as padded batches
    through the same model: speed, latency, what limits it, and whether texts differ.
    """
    from batchgen.config.loading import load_job

    output = output_of(ctx)
    output.set_mode(as_json=as_json, quiet=quiet)
    loaded = load_job(job, overrides or ())
    from batchgen.bench.compare import compare_job
    from batchgen.bench.measured import CompareOptions
    from batchgen.bench.saving import result_folder

    where = result_folder(loaded, folder)
    options = CompareOptions(
        num_rows=num_rows,
        num_repeats=num_repeats,
        sizes=None if sizes is None else parse_sizes(sizes),
        arrival_rows_per_s=arrival_rate,
        gaps=gaps,
        max_wait_s=max_wait,
        static=static,
        free_lengths=free_lengths,
        max_minutes=max_minutes,
    )
    comparison = compare_job(loaded, options, output_path=str(where), console=output)
    failures = answer(comparison, loaded, where, output)
    if comparison.exit_code in ENDED_BY_SIGNAL:
        output.line(f"{comparison.stopped}; what was measured before is shown")
    elif comparison.stopped is not None:
        output.error(f"{comparison.stopped}; what was measured before is shown")
    failures.end(output)
    raise typer.Exit(comparison.exit_code)


def answer(
    comparison: "Comparison", job: "JobConfig", folder: Path, output: Output
) -> LateFailures:
    """Save and show; what cannot be saved is shown all the same. What was in the way of saving."""
    from batchgen.bench.saving import save_comparison
    from batchgen.cli.comparison import show_comparison

    failures = LateFailures()
    files: tuple[Path, ...] = ()
    if comparison.ways:
        with failures.kept():
            files = save_comparison(comparison, folder, job)
    if output.as_json:
        names = [str(file) for file in files] or None
        output.json({**comparison.to_json(), "files": names, **failures.facts()})
    else:
        show_comparison(comparison, output)
    if files:
        output.line(f"wrote {' and '.join(map(str, files))}")
    return failures
