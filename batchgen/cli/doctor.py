"""`batchgen doctor`: is everything here, and what would batchgen choose on this machine?"""

from dataclasses import asdict
from typing import Annotated, Final

import typer

from batchgen.cli.options import AsJson, output_of
from batchgen.errors import EngineNotInstalled

EPILOG: Final = """\b
Examples:
  batchgen doctor
  batchgen doctor --measure
  batchgen doctor --json
"""


def doctor(
    ctx: typer.Context,
    with_rates: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Also measure the matrix and the memory rate of this machine (ten seconds).",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what this machine has and lacks.

    Versions, device, memory, the engine settings that batchgen would choose here, and for
    everything that is missing the command that mends it.
    """
    from batchgen.run.doctor import examine, measure

    output = output_of(ctx)
    output.set_mode(as_json=as_json)
    measured = measure() if with_rates else None
    findings = examine(rates=measured)
    output.table(
        ("", "what", "found"),
        ((finding.status, finding.name, finding.value) for finding in findings),
    )
    remedies = [finding for finding in findings if finding.remedy]
    if remedies:
        output.text()
        output.text("To mend:")
    for finding in remedies:
        output.text(f"  {finding.name}: {finding.remedy}")
    is_ready = all(finding.status != "missing" for finding in findings)
    if as_json:
        rates = measured.rates if measured else None
        output.json(
            {
                "ready": is_ready,
                "findings": [asdict(finding) for finding in findings],
                "rates": None if rates is None else asdict(rates),
            }
        )
    if not is_ready:
        raise typer.Exit(EngineNotInstalled.exit_code)
