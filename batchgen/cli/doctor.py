"""`batchgen doctor`: is everything here, and what would batchgen choose on this machine?"""

from dataclasses import asdict
from typing import Final

import typer

from batchgen.cli.options import AsJson, output_of
from batchgen.errors import EngineNotInstalled

EPILOG: Final = """\b
Examples:
  batchgen doctor
  batchgen doctor --json
"""


def doctor(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show what this machine has and lacks.

    Versions, device, memory, the engine settings that batchgen would choose here, and for
    everything that is missing the command that mends it.
    """
    from batchgen.run.doctor import examine

    output = output_of(ctx)
    output.set_mode(as_json=as_json)
    findings = examine()
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
        output.json({"ready": is_ready, "findings": [asdict(finding) for finding in findings]})
    if not is_ready:
        raise typer.Exit(EngineNotInstalled.exit_code)
