"""`batchgen`: assembles the commands, and turns errors into lines and exit codes.

A mistake of the user's is a `BatchgenError`: one `error:` line for each problem and the exit code
of its branch. Anything else that escapes is a fault of the program: one line, exit code 1, and
the traceback in a file (on stderr with BATCHGEN_DEBUG=1). Nothing heavy is imported on the way
here; each command imports what it needs when it runs.
"""

import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

import batchgen
from batchgen.cli import (
    check,
    compare,
    doctor,
    init,
    plan,
    preview,
    report,
    run,
    schema,
    status,
    tune,
    verify,
)
from batchgen.cli.output import Output, StdoutLost
from batchgen.config.masking import masked
from batchgen.errors import BatchgenError

CLOSED_PIPE: Final = 141
"""What a shell gives for a program that wrote into a pipe without reader (128 + SIGPIPE)."""
EPILOG: Final = """\b
Examples:
  batchgen init data/*.parquet -o job.yaml
  batchgen check job.yaml
  batchgen run job.yaml
"""


class BatchgenGroup(TyperGroup):
    """The group of all commands: one place where exceptions become exit codes."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; every way out is an exit code."""
        output = ctx.obj = Output()
        with exit_codes(output):
            return super().invoke(ctx)


@contextmanager
def exit_codes(output: Output) -> Iterator[None]:
    """Every way out of this block is a `typer.Exit`, after the lines that say why."""
    try:
        with _problems_told(output):
            yield
    except StdoutLost as exc:
        if exc.is_closed:
            raise typer.Exit(CLOSED_PIPE) from exc
        output.error(str(exc))
        raise typer.Exit(1) from exc


@contextmanager
def _problems_told(output: Output) -> Iterator[None]:
    try:
        yield
    except BatchgenError as exc:
        raise _told(exc, exc.problems, exc.exit_code, output) from exc
    except (typer.Exit, typer.Abort, typer.TyperException, BrokenPipeError, StdoutLost):
        raise
    except Exception as exc:
        raise _told(exc, (unexpected_line(exc),), 1, output) from exc


def _told(exc: Exception, problems: Sequence[str], exit_code: int, output: Output) -> typer.Exit:
    """Say these problems where they belong, with --json on stdout as well."""
    for problem in problems:
        output.error(problem)
    _show_traceback(exc, output)
    if output.as_json:
        output.json({"error": masked(list(problems)), "exit_code": exit_code})
    return typer.Exit(exit_code)


def unexpected_line(exc: Exception) -> str:
    """What to say of a fault of the program, with the file that holds its traceback."""
    from batchgen.monitor.logs import save_traceback

    what = f"{type(exc).__name__}: {exc}".replace("\n", " ")
    try:
        where = f"the traceback is in {save_traceback(exc)}"
    except OSError as failure:
        where = f"its traceback could not be saved ({failure.strerror}): set BATCHGEN_DEBUG=1"
    return f"unexpected {what}; this is a fault of batchgen; {where}"


def _show_traceback(exc: Exception, output: Output) -> None:
    if os.environ.get("BATCHGEN_DEBUG") == "1":
        output.line("".join(traceback.format_exception(exc)))


def _show_version(value: bool) -> None:
    if value:
        output = Output()
        with exit_codes(output):
            output.text(f"batchgen {batchgen.__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=BatchgenGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)


@app.callback()
def batchgen_options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Run a language model over a whole corpus: Parquet and JSONL in, Parquet out.

    Running the same command again resumes: nothing is lost, nothing is done twice.
    """


app.command("init", epilog=init.EPILOG)(init.init)
app.command("check", epilog=check.EPILOG)(check.check)
app.command("plan", epilog=plan.EPILOG)(plan.plan)
app.command("preview", epilog=preview.EPILOG)(preview.preview)
app.command("run", cls=run.RunCommand, epilog=run.EPILOG)(run.run)
app.command("compare", epilog=compare.EPILOG)(compare.compare)
app.command("tune", epilog=tune.EPILOG)(tune.tune)
app.command("status", epilog=status.EPILOG)(status.status)
app.command("report", epilog=report.EPILOG)(report.report)
app.command("verify", epilog=verify.EPILOG)(verify.verify)
app.command("doctor", epilog=doctor.EPILOG)(doctor.doctor)
app.command("schema", epilog=schema.EPILOG)(schema.schema)


def main() -> None:
    """The console script: run a command and leave the process with its exit code."""
    app(prog_name="batchgen")
