"""Arguments and options that several commands share."""

import math
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from batchgen.cli.output import Output

MOST_PRICE: Final = 1e12
"""Of an hour: beyond it a sum of costs may be no number any more."""
LEAST_RATE: Final = 1e-9
MOST_RATE: Final = 1e9
"""Bounds of --arrival-rate, rows per second: beyond them gaps add up to no number any more."""


def checked_overrides(values: list[str] | None) -> list[str] | None:
    """Refuse an override that is not KEY=VALUE: a mistake on the command line, not in the job."""
    for value in values or ():
        key, equals, _ = value.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(
                f"'{value}' is not KEY=VALUE; for example: -s sampling.max_tokens=64"
            )
    return values


def finite_price(value: float | None) -> float | None:
    """Refuse a price that no sum can be made of (`inf`, `nan`, 1e400)."""
    if value is not None and not 0 <= value <= MOST_PRICE:
        raise typer.BadParameter(f"must be a number from 0 to {MOST_PRICE:g}, is {value}")
    return value


def finite(value: float | None) -> float | None:
    """`value`, if it is a number: `inf` and `nan` are none that JSON knows."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"must be a finite number, is {value:g}")
    return value


def above_zero(value: float | None) -> float | None:
    """`value`, if it is a finite number above 0."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise typer.BadParameter(f"must be a finite number above 0, is {value:g}")
    return value


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
