"""`batchgen status`: how far a run is, or how it ended."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import typer

from batchgen.cli.options import AsJson, RunPath, output_of
from batchgen.errors import DataError

EPILOG: Final = """\b
Examples:
  batchgen status runs/summarize-docs
  batchgen status runs/summarize-docs --json
  watch -n 10 batchgen status runs/summarize-docs
"""

PROGRESS_KEYS: Final = (
    "run_id",
    "pid",
    "host",
    "phase",
    "started_at",
    "updated_at",
    "elapsed_s",
    "rows_done",
    "rows_total",
    "total_is_estimate",
    "rows_failed",
    "failed_by_type",
    "num_prompt_tokens",
    "num_output_tokens",
)
LIVE_KEYS: Final = ("rows_per_s", "output_tokens_per_s", "eta_s", "last_completion_age_s")
WORDS: Final = {
    "running": "running",
    "done": "done: every input row has its output row",
    "stopped": "stopped with rows left; run the same job again to go on",
    "killed": "killed, or the machine went down; run the same job again to go on",
}


def status(ctx: typer.Context, path: RunPath, as_json: AsJson = False) -> None:
    """Show how far a run is, or how it ended.

    Progress, rate, time left, and failures by type, while it runs and afterwards.
    """
    output = output_of(ctx)
    output.set_mode(as_json=as_json)
    answer = look_at(path)
    if as_json:
        output.json(answer)
    else:
        output.fields(status_fields(answer))


def look_at(path: Path) -> dict[str, Any]:
    """The state of the run in this directory, under the keys of docs/json-answers.md.

    A run that came to an orderly end has left a manifest with its counts. That of a killed run is
    from before its first row; what it last said of its progress is newer.
    """
    from batchgen.monitor.state import read_progress, run_state
    from batchgen.output.layout import RunLayout

    layout = RunLayout(path)
    progress = read_progress(layout.progress)
    if progress is None and not layout.manifest.exists():
        raise DataError(f"{path}: no run is here; give the directory that is output.path of a job")
    state = run_state(progress, is_complete=layout.success.exists())
    known = dict(progress or {})
    if state in ("done", "stopped") and layout.manifest.exists():
        known |= from_manifest(layout.manifest)
    if state == "running":
        known |= brought_forward(known)
    if state == "done":
        known |= {"rows_total": known["rows_done"], "total_is_estimate": False}
    answer: dict[str, Any] = {"path": str(path), "state": state}
    answer.update({key: known.get(key) for key in PROGRESS_KEYS})
    answer.update({key: known.get(key) if state == "running" else None for key in LIVE_KEYS})
    return answer


def brought_forward(progress: dict[str, Any]) -> dict[str, Any]:
    """Seconds that a live run's progress holds, counted on from its last update until now."""
    age = datetime.now(UTC) - datetime.fromisoformat(progress["updated_at"])
    passed_s = max(0.0, age.total_seconds())
    keys = ("elapsed_s", "last_completion_age_s")
    return {key: progress[key] + passed_s for key in keys if progress.get(key) is not None}


def from_manifest(path: Path) -> dict[str, Any]:
    """What a manifest adds: counts of the whole output, by type, and the id of the last run."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        known = {"run_id": manifest["runs"][-1]["run_id"]}
        counts = manifest["counts"]
    except (OSError, ValueError, LookupError, TypeError) as exc:
        raise DataError(f"{path}: is no manifest that batchgen can read: {exc}") from exc
    if counts:
        known["rows_done"] = counts["num_rows"]
        known["rows_failed"] = counts["num_failed"]
        known["failed_by_type"] = counts["failed_by_type"]
    return known


def status_fields(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The answer in words."""
    from batchgen.cli.run import counted
    from batchgen.monitor.progress import duration

    yield "run", f"{answer['run_id']} in {answer['path']}"
    yield "state", WORDS[answer["state"]]
    if answer["state"] == "running":
        yield "process", f"{answer['pid']} on {answer['host']}, {answer['phase']}"
    if answer["elapsed_s"] is not None:
        yield "elapsed", f"{duration(answer['elapsed_s'])} (started {answer['started_at']})"
    yield "rows", _rows(answer)
    if answer["rows_failed"]:
        types = counted(answer["failed_by_type"] or {})
        yield "failed", f"{answer['rows_failed']:,}" + (f" ({types})" if types else "")
    if answer["rows_per_s"] is not None and answer["output_tokens_per_s"] is not None:
        rate = f"{answer['rows_per_s']:,.2f} rows/s"
        yield "rate", f"{rate}, {answer['output_tokens_per_s']:,.0f} output tokens/s"
    if answer["eta_s"] is not None:
        yield "time left", duration(answer["eta_s"])
    if answer["last_completion_age_s"] is not None:
        yield "last completion", f"{answer['last_completion_age_s']:,.0f} s ago"


def _rows(answer: dict[str, Any]) -> str:
    done, total = answer["rows_done"], answer["rows_total"]
    if done is None:
        return "not known"
    if total is None:
        return f"{done:,}"
    about = "about " if answer["total_is_estimate"] else ""
    return f"{done:,} of {about}{total:,}"
