"""What limited the newest run, and what helps: its own diagnosis, or one made of its batches.

A run says at its end what it found, with all that only a live engine knows. Of one that goes on,
or was killed, there are the batches.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from batchgen.report.records import Finding
from batchgen.stats.batch import BatchRecord
from batchgen.stats.diagnosis import diagnose, evidence_of
from batchgen.stats.remedies import Settings


def stored_findings(stored: Sequence[object]) -> tuple[Finding, ...]:
    """The diagnosis that a run has left in the manifest."""
    return tuple(_finding(item) for item in stored if isinstance(item, Mapping))


def findings(
    batches: Sequence[BatchRecord], slots: int | None, job: Mapping[str, Any]
) -> tuple[Finding, ...]:
    """A diagnosis by the batches of a run alone; `job` is the job as the manifest has it."""
    evidence = evidence_of(batches, slots=slots, settings=Settings.of_job(job))
    return tuple(
        Finding(verdict.kind, verdict.summary, verdict.evidence, verdict.remedy, verdict.share)
        for verdict in diagnose(evidence)
    )


def _finding(values: Mapping[str, Any]) -> Finding:
    kind, summary, evidence, remedy = (
        str(values.get(name) or "") for name in ("kind", "summary", "evidence", "remedy")
    )
    return Finding(kind, summary, evidence, remedy, values.get("share"))
