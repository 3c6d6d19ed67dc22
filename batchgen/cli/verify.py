"""`batchgen verify`: proves that the outputs belong to the inputs."""

from typing import Final

import typer

from batchgen.cli.options import AsJson, RunPath, output_of
from batchgen.errors import DataError

EPILOG: Final = """\b
Examples:
  batchgen verify runs/summarize-docs
  batchgen verify runs/summarize-docs --json
"""


def verify(ctx: typer.Context, path: RunPath, as_json: AsJson = False) -> None:
    """Prove one output row for each input row.

    Looks for missing, extra and doubled rows, for rows out of order, for parts with another
    schema, and for counts that disagree.
    """
    from batchgen.run.verifying import verify_run

    output = output_of(ctx)
    output.set_mode(as_json=as_json)
    report = verify_run(path)
    if as_json:
        output.json(
            {
                "path": str(path),
                "ok": not report.problems,
                "num_rows": report.num_rows,
                "num_parts": report.num_parts,
                "problems": list(report.problems),
                "notes": list(report.notes),
            }
        )
    elif not report.problems:
        output.text(f"{path}: {report.num_rows:,} rows in {report.num_parts:,} parts, all in place")
    for note in report.notes:
        output.line(f"note: {note}")
    for problem in report.problems:
        output.error(problem)
    if report.problems:
        raise typer.Exit(DataError.exit_code)
