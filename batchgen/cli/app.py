"""`batchgen`: assembles the commands, and turns errors into lines and exit codes.

A mistake of the user's is a `BatchgenError`: one `error:` line for each problem and the exit code
of its branch. Anything else that escapes is a fault of the program: one line, exit code 1, and
the traceback in a file (on stderr with BATCHGEN_DEBUG=1). Nothing heavy is imported on the way
here; each command imports what it needs when it runs.
"""

import os
import traceback
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

import batchgen
from batchgen.cli import check, doctor, init, run, schema, status, verify
from batchgen.cli.output import Output
from batchgen.errors import BatchgenError

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
        try:
            return super().invoke(ctx)
        except BatchgenError as exc:
            for problem in exc.problems:
                output.error(problem)
            _show_traceback(exc, output)
            raise typer.Exit(exc.exit_code) from exc
        except (typer.Exit, typer.Abort, typer.TyperException, BrokenPipeError):
            raise
        except Exception as exc:
            output.error(unexpected_line(exc))
            _show_traceback(exc, output)
            raise typer.Exit(1) from exc


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
        Output().text(f"batchgen {batchgen.__version__}")
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
app.command("run", cls=run.RunCommand, epilog=run.EPILOG)(run.run)
app.command("status", epilog=status.EPILOG)(status.status)
app.command("verify", epilog=verify.EPILOG)(verify.verify)
app.command("doctor", epilog=doctor.EPILOG)(doctor.doctor)
app.command("schema", epilog=schema.EPILOG)(schema.schema)


def main() -> None:
    """The console script: run a command and leave the process with its exit code."""
    app(prog_name="batchgen")
