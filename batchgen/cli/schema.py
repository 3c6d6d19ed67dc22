"""`batchgen schema`: the JSON schema of the job file."""

from typing import Final

import typer

from batchgen.cli.options import output_of

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
    import json

    from batchgen.config.schema import job_schema

    output_of(ctx).raw(json.dumps(job_schema(), indent=2, ensure_ascii=True))
