"""`batchgen preview`: a few rows on the terminal while the model writes them."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from batchgen.cli.options import AsJson, JobPath, Overrides, output_of
from batchgen.cli.output import Output
from batchgen.errors import UsageError

if TYPE_CHECKING:
    from batchgen.run.previewing import PreviewReport, PreviewRow

EPILOG: Final = """\b
Examples:
  batchgen preview job.yaml
  batchgen preview job.yaml --row docs.jsonl:17 --special-tokens
  batchgen preview job.yaml -n 1 -s sampling.temperature=0.8 --stop-when "\\n\\n"
  batchgen preview job.yaml -n 2 --json

\b
Ctrl-C ends the rows that are still being written and keeps what came (exit code 130); a second
one ends the program at once. No file is written, so a preview changes nothing of a run.
"""
DEFAULT_ROWS: Final = 3


def checked_pattern(value: str | None) -> str | None:
    """`value`, if it is a regular expression that can stop a row."""
    from batchgen.config.stop_early import compile_pattern

    try:
        if value is not None:
            compile_pattern(value)
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from exc
    return value


def preview(
    ctx: typer.Context,
    job: JobPath,
    overrides: Overrides = None,
    num_rows: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--num-rows",
            min=1,
            metavar="N",
            help=f"The first N rows of the job. Default: {DEFAULT_ROWS}.",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(
            "--row",
            metavar="SHARD:ROW",
            help="This row instead of the first ones; may be repeated.",
            show_default=False,
        ),
    ] = None,
    special_tokens: Annotated[
        bool,
        typer.Option("--special-tokens", help="Show prompts token by token, special ones too."),
    ] = False,
    stop_when: Annotated[
        str | None,
        typer.Option(
            "--stop-when",
            metavar="REGEX",
            callback=checked_pattern,
            help="Stop a row in the engine as soon as this is found in what it has written.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a few rows while the model writes them.

    Prompts, then the completions token by token, and at the end how fast each was. What is sent to
    the engine is what a run would send.
    """
    from batchgen.config.loading import load_job

    output = output_of(ctx)
    output.set_mode(as_json=as_json)
    if rows and num_rows is not None:
        raise UsageError("-n takes the first rows, --row names others; leave one of them out")
    loaded = load_job(job, overrides or ())
    from batchgen.cli.streaming import screen_for
    from batchgen.run.chosen_rows import parse_row
    from batchgen.run.previewing import PreviewOptions, preview_job

    options = PreviewOptions(
        num_rows=num_rows or DEFAULT_ROWS,
        rows=tuple(parse_row(row) for row in rows or ()),
        stop_when=stop_when,
        with_tokens=special_tokens,
    )
    with screen_for(output, len(options.rows) or options.num_rows) as screen:
        report = preview_job(loaded, options, screen=screen, console=output)
    show_report(report, output)
    raise typer.Exit(report.exit_code)


def show_report(report: "PreviewReport", output: Output) -> None:
    """What stands below the completions: a line for each row, and why it ended early."""
    if output.as_json:
        output.json(asdict(report))
        return
    heads = ("row", "end", "first token", "tokens/s", "prompt", "output", "saved at most")
    output.table(heads, (tuple(_cells(row)) for row in report.rows))
    if report.stopped is not None:
        saved = report.num_saved_tokens_max
        kept = "" if saved is None else f"; what came is kept, at most {saved:,} tokens are saved"
        output.line(f"{report.stopped}{kept}")


def _cells(row: "PreviewRow") -> Iterator[str]:
    yield f"{row.shard}:{row.row}"
    yield _end(row)
    yield "" if row.ttft_s is None else f"{row.ttft_s:.3f} s"
    yield "" if row.output_tokens_per_s is None else f"{row.output_tokens_per_s:,.1f}"
    for count in (row.num_prompt_tokens, row.num_output_tokens, row.num_saved_tokens_max):
        yield "" if count is None else f"{count:,}"


def _end(row: "PreviewRow") -> str:
    if row.error_type is not None:
        return f"failed: {row.error_type}"
    reasons = row.finish_reason if isinstance(row.finish_reason, list) else [row.finish_reason]
    known = ", ".join(dict.fromkeys(reason for reason in reasons if reason))
    return known if row.stopped_by is None else f"{known}: {row.stopped_by}"
