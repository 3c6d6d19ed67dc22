"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from batchgen.cli.output import Output


def checked_overrides(values: list[str] | None) -> list[str] | None:
    """Refuse an override that is not KEY=VALUE: a mistake on the command line, not in the job."""
    for value in values or ():
        key, equals, _ = value.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(
                f"'{value}' is not KEY=VALUE; for example: -s sampling.max_tokens=64"
            )
    return values


JobPath = Annotated[
    Path, typer.Argument(metavar="JOB", help="The job file (YAML).", show_default=False)
]
RunPath = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="The run's directory: output.path of its job.", show_default=False
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "-s",
        "--set",
        metavar="KEY=VALUE",
        callback=checked_overrides,
        help="Override a key of the job file; may be repeated.",
        show_default=False,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Answer with one JSON object on the last line of stdout.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Only warnings, errors and what --json answers.")
]
LogFormat = Annotated[
    Literal["text", "json"],
    typer.Option("--log-format", metavar="text|json", help="Lines on stderr and in the log file."),
]


def output_of(ctx: typer.Context) -> Output:
    """The printer of this invocation."""
    output = ctx.obj
    assert isinstance(output, Output)
    return output
