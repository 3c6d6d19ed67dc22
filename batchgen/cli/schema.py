"""`batchgen schema`: the JSON schema of the job file."""

from pathlib import Path
from typing import Final

import typer

import batchgen
from batchgen.cli.options import output_of

SCHEMA: Final = Path(batchgen.__file__).parent / "config" / "tables" / "job.schema.json"
"""What `config/schema.py` makes of the models; importing these would take longer than reading."""
EPILOG: Final = """\b
Examples:
  batchgen schema > batchgen.schema.json
  batchgen schema | jq '.properties | keys'

\b
Editors find it where the first line of a job file is
`# yaml-language-server: $schema=batchgen.schema.json`.
"""


def schema(ctx: typer.Context) -> None:
    """Print the JSON schema of the job file.

    Editors make completion and hover texts of it.
    """
    output_of(ctx).raw(SCHEMA.read_text(encoding="utf-8").rstrip("\n"))
