"""`batchgen run`: the job; resumes by itself."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from batchgen.cli.options import AsJson, JobPath, LogFormat, Overrides, Quiet, output_of
from batchgen.cli.output import Output, shortened
from batchgen.cli.report import write_after_run
from batchgen.errors import ErrorBudgetExceeded, UsageError
from batchgen.records import RETRYABLE

if TYPE_CHECKING:
    from batchgen.run.summary import RunSummary

EPILOG: Final = """\b
Examples:
  batchgen run job.yaml
  batchgen run job.yaml --limit 100 -s sampling.max_tokens=64
  batchgen run job.yaml --retry-failed --deadline 06:00
  batchgen run job.yaml --where "finish_reason == 'length'" -s sampling.max_tokens=512

\b
Exit codes: 0 done; 3 job file; 4 data, or a resume that does not match; 5 engine;
6 too many failed rows; 7 deadline with rows left; 75 locked by another run;
130 and 143 stopped by a signal, everything finished saved. See docs/exit-codes.md.
"""

ORDERLY_ENDS: Final = (7, 130, 143)
"""Exit codes of runs that were asked to stop, by a deadline or a signal: no mistake of anyone's."""
RETRY_OPTION: Final = "--retry-failed"
RETRY_CHOICES: Final = ("retryable", "all")


class RunCommand(TyperCommand):
    """`run` with one option more than Typer can express: `--retry-failed` with or without value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give the bare option its value before Typer reads the arguments."""
        return super().parse_args(ctx, list(with_retry_value(args)))


def with_retry_value(args: list[str]) -> Iterator[str]:
    """`args` in which `--retry-failed` always has a value, joined by `=`.

    >>> list(with_retry_value(["--retry-failed", "job.yaml"]))
    ['--retry-failed=retryable', 'job.yaml']
    >>> list(with_retry_value(["job.yaml", "--retry-failed", "all"]))
    ['job.yaml', '--retry-failed=all']
    """
    rest = iter(args)
    for arg in rest:
        if arg == "--":
            yield arg
            yield from rest
        elif arg == RETRY_OPTION:
            following = next(rest, None)
            if following in RETRY_CHOICES:
                yield f"{RETRY_OPTION}={following}"
            else:
                yield f"{RETRY_OPTION}={RETRY_CHOICES[0]}"
                if following is not None:
                    yield from with_retry_value([following, *rest])
        else:
            yield arg


def checked_retry(value: str | None) -> str | None:
    """`value`, if it is a choice."""
    if value is not None and value not in RETRY_CHOICES:
        raise typer.BadParameter(
            f"'{value}' is no choice; write {RETRY_OPTION} (rows whose failure may go away) "
            f"or {RETRY_OPTION}=all"
        )
    return value


def run(
    ctx: typer.Context,
    job: JobPath,
    overrides: Overrides = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            metavar="N",
            help="Only the first N rows, into <output.path>-limit-N.",
            show_default=False,
        ),
    ] = None,
    retry_failed: Annotated[
        str | None,
        typer.Option(
            RETRY_OPTION,
            metavar="[=all]",
            callback=checked_retry,
            help="Also redo failed rows: those whose failure may go away, or all.",
            show_default=False,
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="EXPR",
            help="Also redo the rows that a pandas query over the added columns selects.",
            show_default=False,
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline",
            metavar="TIME",
            help="Stop in good order at a time of day (06:00) or after a duration (8h, 90m).",
            show_default=False,
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard what earlier runs have left, start over.")
    ] = False,
    accept_change: Annotated[
        list[str] | None,
        typer.Option(
            "--accept-change",
            metavar="KEY",
            help="Keep finished rows although this key (or 'inputs') changed; may be repeated.",
            show_default=False,
        ),
    ] = None,
    no_report: Annotated[
        bool,
        typer.Option(
            "--no-report", envvar="BATCHGEN_NO_REPORT", help="Write no report.html at the end."
        ),
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    log_format: LogFormat = "text",
) -> None:
    """Run a job, or go on where it stopped.

    Rows that have their output are never generated again. The answer goes to stdout, progress
    and warnings to stderr.
    """
    from batchgen.config.loading import load_job
    from batchgen.run.options import RunOptions

    output = output_of(ctx)
    output.set_mode(as_json=as_json, quiet=quiet, log_format=log_format)
    if fresh and (retry_failed or where):
        raise UsageError("--fresh starts over: there is nothing to redo with it; leave one out")
    options = RunOptions(
        limit=limit,
        retry_failed=retry_failed,
        where=where,
        deadline=deadline,
        fresh=fresh,
        accept_change=tuple(accept_change or ()),
    )
    loaded = load_job(job, overrides or ())
    from batchgen.run.job import run_job

    summary = run_job(loaded, options, console=output)
    show_summary(summary, output)
    if not no_report:
        write_after_run(Path(summary.output_path), output, nothing_new=summary.nothing_new)
    if summary.exit_code in ORDERLY_ENDS:
        output.line(reason(summary, str(job)))
    elif summary.exit_code:
        output.error(reason(summary, str(job)))
    raise typer.Exit(summary.exit_code)


def show_summary(summary: "RunSummary", output: Output) -> None:
    """The answer of `run`: one JSON object, or some lines for people."""
    if output.as_json:
        output.json(summary.to_dict())
    elif not output.quiet:
        output.fields(summary_fields(summary))
        for sample in summary.samples:
            text = sample["output"]
            output.text(f"\n{sample['shard']}:{sample['row']}")
            output.text(f"  {shortened(text if isinstance(text, str) else repr(text))}")


def summary_fields(summary: "RunSummary") -> Iterator[tuple[str, str]]:
    """The summary in words: the whole output first, then this execution."""
    yield "outputs", f"{summary.outputs}/*.parquet"
    yield "batches", f"{summary.batches}/*.parquet"
    yield "rows", f"{summary.num_rows:,}: {summary.num_ok:,} ok, {_failures(summary)}"
    if summary.finish_reasons:
        yield "finish", counted(summary.finish_reasons)
    if summary.num_duplicates:
        yield "copies", f"{summary.num_duplicates:,} rows have an equal prompt's completion"
    if summary.num_cut:
        yield "cut", f"{summary.num_cut:,} rows reached their token limit"
    if summary.stopped_early:
        yield "early", _stopped_early(summary.stopped_early, summary.num_saved_tokens_max)
    if summary.num_invalid_json is not None:
        yield "json", f"{summary.num_invalid_json:,} outputs are not valid JSON"
    if summary.blank_lines or summary.skipped_lines:
        yield "lines", f"{summary.blank_lines:,} blank, {summary.skipped_lines:,} bad and skipped"
    if summary.num_stale:
        yield "dropped", f"{summary.num_stale:,} completions of an earlier call"
    if summary.nothing_new:
        yield "this run", "nothing new: every input row has its output row already"
        return
    yield "this run", _speed(summary)
    yield "tokens", _tokens(summary)
    if summary.roofline_s is not None:
        yield "roofline", _roofline(summary)
    if summary.diagnosis:
        yield "limit", _limit(summary.diagnosis[0])
    if summary.engine_restarts:
        yield "restarts", f"the engine was restarted {summary.engine_restarts} times"
    if summary.phases:
        seconds = (f"{name.replace('_', ' ')} {s:.1f} s" for name, s in summary.phases.items())
        yield "time", f"{summary.wall_s:.1f} s: {', '.join(seconds)}"


def reason(summary: "RunSummary", job_path: str) -> str:
    """Why the exit code is not 0, and the next step."""
    if summary.stopped:
        tail = "" if summary.exit_code == ErrorBudgetExceeded.exit_code else "; run again to go on"
        return f"{summary.stopped}{tail}"
    worst = max(summary.failed_by_type, key=lambda name: summary.failed_by_type[name], default="")
    line = (
        f"{summary.num_failed:,} of {summary.num_rows:,} rows failed, more than errors.max_failed "
        f"allows; most often: {worst}; the column 'error' in {summary.outputs} says why"
    )
    if any(name in RETRYABLE for name in summary.failed_by_type):
        line += f"; try again with: batchgen run {job_path} {RETRY_OPTION}"
    return line


def counted(counts: Mapping[str, int]) -> str:
    """Counts by name, the largest first.

    >>> counted({"stop": 5, "length": 1200})
    'length 1,200, stop 5'
    """
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count:,}" for name, count in ordered)


def _failures(summary: "RunSummary") -> str:
    if not summary.num_failed:
        return "0 failed"
    share = f"{summary.num_failed:,} of {summary.num_rows:,} failed"
    return f"{share} ({counted(summary.failed_by_type)})"


def _stopped_early(rules: Mapping[str, int], saved: int | None) -> str:
    tokens = "" if saved is None else f", at most {saved:,} tokens saved"
    return f"{sum(rules.values()):,} rows stopped early ({counted(rules)}){tokens}"


def _speed(summary: "RunSummary") -> str:
    line = f"{summary.rows_this_run:,} rows in {summary.generate_s:.1f} s"
    if summary.rows_per_s is None or summary.output_tokens_per_s is None:
        return line
    line += (
        f", {summary.rows_per_s:,.2f} rows/s, {summary.output_tokens_per_s:,.0f} output tokens/s"
    )
    if summary.total_tokens_per_s is not None:
        line += f", {summary.total_tokens_per_s:,.0f} tokens/s in all"
    return line


def _roofline(summary: "RunSummary") -> str:
    return (
        f"at least {summary.roofline_s:.1f} s for this work on this machine"
        f" ({summary.roofline_source}), took {summary.generate_s:.1f} s:"
        f" {summary.roofline_fraction:.2f} of the roofline"
    )


def _limit(verdict: Mapping[str, Any]) -> str:
    """The most important verdict of the diagnosis in one line."""
    share = "" if verdict["share"] is None else f", {verdict['share']:.0%} of the time"
    return f"{verdict['summary']}{share} ({verdict['evidence']}); {verdict['remedy']}"


def _tokens(summary: "RunSummary") -> str:
    cached = summary.num_cached_tokens
    known = "" if cached is None else f" ({cached:,} from the prefix cache)"
    return f"{summary.num_prompt_tokens:,} prompt{known}, {summary.num_output_tokens:,} output"
