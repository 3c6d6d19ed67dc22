"""`batchgen tune`: how many rows at once, measured on the job's own rows with one engine start."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from batchgen.cli.late_failure import LateFailures
from batchgen.cli.options import (
    LEAST_RATE,
    MOST_RATE,
    AsJson,
    JobPath,
    LogFormat,
    Overrides,
    Quiet,
    above_zero,
    finite,
    output_of,
)
from batchgen.cli.output import Output
from batchgen.monitor.printable import counted

if TYPE_CHECKING:
    from batchgen.bench.tune_report import TuneReport
    from batchgen.config.models import JobConfig

EPILOG: Final = """\b
Examples:
  batchgen tune job.yaml
  batchgen tune job.yaml --max-latency p95=2s --arrival-rate 40
  batchgen tune job.yaml --max-concurrency 512 --restart --write
"""


def tune(
    ctx: typer.Context,
    job: JobPath,
    overrides: Overrides = None,
    max_concurrency: Annotated[
        int | None,
        typer.Option(
            "--max-concurrency",
            min=1,
            metavar="N",
            help="Slots to start the engine with, in place of model.max_num_seqs.",
            show_default=False,
        ),
    ] = None,
    max_latency: Annotated[
        list[str] | None,
        typer.Option(
            "--max-latency",
            metavar="pNN=TIME",
            help="Recommend only what keeps this: p95=2s, ttft_p50=300ms, tpot_p95=80ms;"
            " may be repeated.",
            show_default=False,
        ),
    ] = None,
    arrival_rate: Annotated[
        float | None,
        typer.Option(
            "--arrival-rate",
            min=LEAST_RATE,
            max=MOST_RATE,
            metavar="R",
            callback=finite,
            help="Also say how many replicas of a server take R rows per second.",
            show_default=False,
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, metavar="N", help="Trials of each point that counts.")
    ] = 3,
    max_minutes: Annotated[
        float,
        typer.Option(
            "--max-minutes",
            metavar="M",
            callback=above_zero,
            help="Time for the sweep, engine start left out.",
        ),
    ] = 10.0,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart", help="Also measure proposals that need another start of the engine."
        ),
    ] = False,
    write: Annotated[
        bool,
        typer.Option("--write", help="Change the job file to what is recommended, and show how."),
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Directory for tune.json and tune.parquet. Default: output.path of the job.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    log_format: LogFormat = "text",
) -> None:
    """Find the concurrency that suits a job, with one engine start.

    Measures throughput and latency with 1, 2, 4 ... rows in flight and recommends a setting: the
    most throughput, or the most under a limit of latency.
    """
    from batchgen.config.loading import load_job

    output = output_of(ctx)
    output.set_mode(as_json=as_json, quiet=quiet, log_format=log_format)
    loaded = load_job(job, overrides or ())
    before = job.read_bytes()
    from batchgen.bench.latency_limit import parse_limit
    from batchgen.bench.saving import result_folder
    from batchgen.bench.tune import TuneOptions, tune_job
    from batchgen.bench.tune_report import save_report

    options = TuneOptions(
        max_concurrency=max_concurrency,
        repeats=repeats,
        max_minutes=max_minutes,
        limits=tuple(parse_limit(text) for text in max_latency or ()),
        arrival_rate=arrival_rate,
        restart=restart,
    )
    target = result_folder(loaded, folder)
    if write:
        check_job(job, before, loaded, max_concurrency)
    report = tune_job(loaded, options, console=output)
    answer: dict[str, Any] = {**report.to_dict(), "files": [], "written": None}
    failures = LateFailures()
    if report.points:
        with failures.kept():
            answer["files"] = [str(path) for path in save_report(report, target, loaded)]
        show(report, output, job=str(job), given=overrides or [], files=answer["files"])
    if write and report.overrides and not report.exit_code:
        with failures.kept():
            write_job(job, before, report, output)
            answer["written"] = str(job)
    elif write:
        output.warn(f"nothing is recommended, so {job} is left as it is")
    if as_json:
        output.json({**answer, **failures.facts()})
    end(report, failures, output)


def show(
    report: "TuneReport", output: Output, *, job: str, given: list[str], files: list[str]
) -> None:
    """The report for people; what stands in it is no warning, so it goes to stdout."""
    from batchgen.cli.tune_answer import HEADS, facts, run_line, table_rows

    output.table(HEADS, table_rows(report))
    output.text()
    output.fields(
        [
            *facts(report),
            *(("note", note) for note in report.notes),
            *([("files", ", ".join(files))] if files else []),
        ]
    )
    if report.overrides:
        output.text()
        output.text(run_line(job, given, report.overrides))


def check_job(job: Path, before: bytes, loaded: "JobConfig", slots: int | None) -> None:
    """Whether the job file lets itself be changed, before minutes are spent on what to write."""
    from batchgen.config.editing import check_rewritable

    window, slots = loaded.batch.window, slots or loaded.model.max_num_seqs
    changes: dict[str, int | str] = {"model.max_num_seqs": 1}
    if window != "auto" and (slots is None or window < slots):
        changes["batch.window"] = "auto"
    check_rewritable(job, before, changes)


def write_job(job: Path, before: bytes, report: "TuneReport", output: Output) -> None:
    """Put what is recommended into the job file, and show the lines that change."""
    from batchgen.cli.tune_answer import changes_of
    from batchgen.config.editing import changed_lines, rewrite_job

    after = rewrite_job(job, before, changes_of(report.overrides))
    lines = list(changed_lines(before.decode("utf-8-sig"), after, str(job)))
    output.text()
    for line in lines or [f"{job} says this already"]:
        output.text(line)


def end(report: "TuneReport", failures: LateFailures, output: Output) -> None:
    """Leave with an exit code; a signal is information, everything else an error."""
    if report.stopped is None:
        failures.end(output)
        return
    is_signal = report.exit_code in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    num_points = len(report.points)
    were = "was" if num_points == 1 else "were"
    sentence = f"{report.stopped}; {counted(num_points, 'point')} {were} measured"
    if is_signal:
        output.line(sentence)
    else:
        output.error(sentence)
    failures.end(output)
    raise typer.Exit(report.exit_code)
