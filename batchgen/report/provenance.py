"""What the outputs were made of and with, as the manifest has it."""

from collections.abc import Mapping
from typing import Any, Final

from batchgen.report.records import Input, Provenance

MAX_INPUTS: Final = 100


def provenance(manifest: Mapping[str, Any]) -> Provenance:
    """Versions, engine, inputs and job of a run directory; an empty manifest says nothing."""
    inputs: Mapping[str, Mapping[str, Any]] = manifest.get("inputs") or {}
    return Provenance(
        created_at=manifest.get("created_at"),
        versions=manifest.get("versions") or {},
        engine=manifest.get("engine"),
        seed=manifest.get("seed"),
        template_digest=manifest.get("template_digest"),
        num_inputs=len(inputs),
        input_bytes=sum(facts.get("num_bytes") or 0 for facts in inputs.values()),
        inputs=tuple(
            Input(name, facts.get("format"), facts.get("num_bytes"), facts.get("num_rows"))
            for name, facts in list(inputs.items())[:MAX_INPUTS]
        ),
        job=manifest.get("job") or {},
    )
