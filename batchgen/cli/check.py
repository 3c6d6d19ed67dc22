"""`batchgen check`: everything that can be known without generating."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from batchgen.cli.options import AsJson, JobPath, Overrides, output_of
from batchgen.cli.output import Output, shortened
from batchgen.config.masking import masked_override
from batchgen.errors import ResumeMismatch

if TYPE_CHECKING:
    from batchgen.run.checking import CheckReport, PromptLook

EPILOG: Final = """\b
Examples:
  batchgen check job.yaml
  batchgen check job.yaml -n 1 -s model.max_model_len=4096
  batchgen check job.yaml --no-tokens --json
"""

SHOWN_SHARDS: Final = 8
SHOWN_TOKEN_IDS: Final = 24


def check(
    ctx: typer.Context,
    job: JobPath,
    overrides: Overrides = None,
    num_prompts: Annotated[
        int, typer.Option("-n", "--prompts", min=0, metavar="N", help="Prompts to show.")
    ] = 3,
    no_tokens: Annotated[
        bool,
        typer.Option("--no-tokens", help="Load no tokenizer: no token counts, within a second."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look at a job without generating anything.

    Shows the inputs, the first prompts with their token ids, rows that will be refused, and
    whether the output will fit on the disk.
    """
    from batchgen.config.loading import load_job

    output = output_of(ctx)
    output.set_mode(as_json=as_json)
    loaded = load_job(job, overrides or ())
    from batchgen.run.checking import check_job

    report = check_job(loaded, tokens=not no_tokens, num_prompts=num_prompts)
    if as_json:
        output.json(asdict(report))
    else:
        show_report(report, output)
        for warning in report.warnings:
            output.warn(warning)
    for problem in report.problems:
        output.error(problem)
    if report.problems:
        raise typer.Exit(ResumeMismatch.exit_code)
    if as_json or (report.num_sampled and report.num_refused == report.num_sampled):
        return
    shown = map(masked_override, overrides or ())
    again = shlex.join(word for override in shown for word in ("-s", override))
    output.line(f"the job can run: batchgen run {job} {again}".rstrip())


def show_report(report: "CheckReport", output: Output) -> None:
    """The report for people."""
    output.fields(_overview(report))
    output.text()
    rows = [
        (shard.name, _mb(shard.num_bytes), "?" if shard.num_rows is None else f"{shard.num_rows:,}")
        for shard in report.shards[:SHOWN_SHARDS]
    ]
    if len(report.shards) > SHOWN_SHARDS:
        rows.append((f"... and {len(report.shards) - SHOWN_SHARDS:,} more", "", ""))
    output.table(("shard", "size", "rows"), rows)
    for prompt in report.prompts:
        output.text()
        for line in _prompt_lines(prompt):
            output.text(line)


def _overview(report: "CheckReport") -> Iterator[tuple[str, str]]:
    yield "job", report.job
    about = "about " if report.is_estimate else ""
    rows = "no rows" if report.num_rows is None else f"{about}{report.num_rows:,} rows"
    size = sum(shard.num_bytes for shard in report.shards)
    yield "input", f"{rows} in {len(report.shards):,} shards, {_mb(size)}"
    yield "columns", ", ".join(report.columns)
    yield "used", ", ".join(report.used_columns)
    yield "kept", ", ".join(report.kept_columns) or "none"
    limit = "not known yet" if report.max_model_len is None else f"{report.max_model_len:,} tokens"
    yield "model length", limit
    if report.stop_early:
        yield "stop early", stop_rules(report.stop_early)
    if report.num_schemas:
        schemas = f"{report.num_schemas:,} in the sample are valid JSON schemas"
        yield "schemas", f"{schemas}; the engine, which is not asked here, may refuse more"
    yield (
        "sample",
        f"{report.num_sampled:,} rows looked at, {report.num_refused:,} will be refused",
    )
    for name, example in report.refused.items():
        place = f"{example.shard}:{example.row}"
        yield f"  {name}", f"{example.num_rows:,}, first {place}: {shortened(example.message)}"
    free = f"{_mb(report.free_bytes)} free"
    if report.estimated_output_bytes is None:
        yield "output", f"{report.output_path}, {free}"
    else:
        size_text = f"roughly {_mb(report.estimated_output_bytes)} at most"
        yield "output", f"{report.output_path}, {size_text}, {free}"


def stop_rules(rules: Mapping[str, Any]) -> str:
    """The rules of `stop_early` in words.

    >>> stop_rules({"pattern": "END", "max_seconds": 30.0})
    "where 'END' is found, after 30 s"
    """
    words = {
        "pattern": "where {0!r} is found",
        "max_seconds": "after {0:g} s",
        "repetition": "where {0[min_count]} or more repetitions stand in a row",
    }
    return ", ".join(words[rule].format(value) for rule, value in rules.items())


def _prompt_lines(prompt: "PromptLook") -> Iterator[str]:
    yield f"prompt of {prompt.shard}:{prompt.row}"
    if prompt.token_ids is not None and prompt.num_tokens is not None:
        ids = " ".join(str(number) for number in prompt.token_ids[:SHOWN_TOKEN_IDS])
        more = " ..." if prompt.num_tokens > SHOWN_TOKEN_IDS else ""
        room = "" if prompt.room_tokens is None else f", room for {prompt.room_tokens:,} more"
        yield f"  {prompt.num_tokens:,} tokens{room}: {ids}{more}"
    else:
        yield "  without token counts, and without the model's chat template"
    for line in shortened_lines(prompt.text):
        yield f"  | {line}"


def shortened_lines(text: str, max_chars: int = 1200) -> list[str]:
    """`text` in lines, the middle left out where it is long."""
    if len(text) <= max_chars:
        return text.split("\n")
    half = max_chars // 2
    left_out = f"[... {len(text) - 2 * half:,} characters ...]"
    return [*text[:half].split("\n"), left_out, *text[-half:].split("\n")]


def _mb(num_bytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes} B"
