"""`batchgen status`: how far a run is, or how it ended."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from batchgen.cli.options import AsJson, RunPath, output_of
from batchgen.errors import DataError, UsageError

if TYPE_CHECKING:
    from batchgen.output.layout import RunLayout

EPILOG: Final = """\b
Examples:
  batchgen status runs/summarize-docs
  batchgen status runs/summarize-docs --json
  batchgen status runs/summarize-docs --watch
  batchgen status runs/summarize-docs --watch --interval 600 && echo all rows are done

\b
Exit codes: 0, whatever the state of the run. With --watch that of the run: 0 done; 5 engine;
6 too many failed rows; 7 deadline; 130 and 143 stopped by a signal; 137 killed.
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
    "exit_code",
    "reason",
)
LIVE_KEYS: Final = ("rows_per_s", "output_tokens_per_s", "eta_s", "last_completion_age_s")
WORDS: Final = {
    "running": "running",
    "done": "done: every input row has its output row",
    "stopped": "stopped with rows left; run the same job again to go on",
    "killed": "killed, or the machine went down; run the same job again to go on",
}


def status(
    ctx: typer.Context,
    path: RunPath,
    as_json: AsJson = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", "-w", help="Follow the run to its end; the exit code is the run's."
        ),
    ] = False,
    interval_s: Annotated[
        float | None,
        typer.Option(
            "--interval",
            min=0.1,
            metavar="SECONDS",
            help="With --watch: from one look to the next; 1 on a terminal, else 60.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show how far a run is, or how it ended.

    Progress, rate, time left, and failures by type, while it runs and afterwards. Works from any
    machine that sees the directory.
    """
    output = output_of(ctx)
    output.set_mode(as_json=as_json)
    if watch:
        from batchgen.cli.watching import follow

        raise typer.Exit(follow(lambda: look_at(path), output, interval_s))
    if interval_s is not None:
        raise UsageError("--interval says how often to look, and needs --watch")
    answer = look_at(path)
    if as_json:
        output.json(answer)
    else:
        output.fields(status_fields(answer))


def look_at(path: Path) -> dict[str, Any]:
    """The state of the run in this directory, under the keys of docs/json-answers.md.

    A run that came to an orderly end has left a manifest with its counts. That of a killed run, or
    of one that ended in an error, is from before its first row; what it last said of its progress
    is newer. A run that is planned still has only its lock.
    """
    from batchgen.monitor.state import read_progress, run_state
    from batchgen.output.layout import RunLayout

    layout = RunLayout.at(path)
    progress = read_progress(layout.progress)
    planning = planning_run(layout, progress)
    if progress is None and planning is None and not layout.manifest.exists():
        raise DataError(f"{path}: no run is here; give the directory that is output.path of a job")
    if planning is not None:
        state, known = "running", planning
    else:
        state = run_state(progress, is_complete=layout.success.exists())
        known = dict(progress or {})
    if state in ("done", "stopped") and layout.manifest.exists():
        latest, counts = from_manifest(layout.manifest)
        ended_in_error = known.get("phase") == "failed"
        known = counts | latest | known if ended_in_error else latest | known | counts
    if state == "running":
        known |= brought_forward(known)
    if state == "done":
        known |= {"rows_total": known.get("rows_done"), "total_is_estimate": False}
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


def planning_run(layout: "RunLayout", progress: dict[str, Any] | None) -> dict[str, Any] | None:
    """A run that holds the lock and has no progress of its own yet; None where there is none."""
    from batchgen.monitor.state import is_alive
    from batchgen.output.lock import read_holder

    holder = read_holder(layout)
    if holder is None:
        return None
    started_at, updated_at = (
        datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
        for moment in (holder.started_at, holder.heartbeat_at)
    )
    run = {"pid": holder.pid, "host": holder.host, "updated_at": updated_at}
    known = progress or {}
    has_progress = (known.get("pid"), known.get("host")) == (holder.pid, holder.host)
    if has_progress or not is_alive(run):
        return None
    elapsed_s = max(0.0, holder.heartbeat_at - holder.started_at)
    return {**run, "phase": "plan", "started_at": started_at, "elapsed_s": elapsed_s}


def from_manifest(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a manifest says of the latest run that made rows, and of the whole output."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        run, counts = manifest["runs"][-1], manifest["counts"]
        latest = {
            "run_id": run["run_id"],
            "exit_code": run.get("exit_code"),
            "reason": run.get("stopped"),
        }
        names = {"rows_done": "num_rows", "rows_failed": "num_failed"}
        names["failed_by_type"] = "failed_by_type"
        return latest, {key: counts[name] for key, name in names.items()} if counts else {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as exc:
        raise DataError(f"{path}: is no manifest that batchgen can read: {exc}") from exc


def status_fields(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The answer in words."""
    from batchgen.cli.run import counted
    from batchgen.monitor.progress import duration

    run = "a run" if answer["run_id"] is None else answer["run_id"]
    yield "run", f"{run} in {answer['path']}"
    yield "state", WORDS[answer["state"]]
    if answer["exit_code"]:
        reason = f": {answer['reason']}" if answer["reason"] else ""
        yield "exit code", f"{answer['exit_code']}{reason}"
    if answer["state"] == "running":
        yield "process", f"{answer['pid']} on {answer['host']}, {answer['phase']}"
    if answer["elapsed_s"] is not None:
        yield "elapsed", f"{duration(answer['elapsed_s'])} (started {answer['started_at']})"
    yield "rows", rows_in_words(answer)
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


def rows_in_words(answer: dict[str, Any]) -> str:
    """`5 of about 20 (25.0%)`, as far as it is known."""
    done, total = answer["rows_done"], answer["rows_total"]
    if done is None:
        return "not known"
    if total is None:
        return f"{done:,}"
    about = "about " if answer["total_is_estimate"] else ""
    share = f" ({done / total:.1%})" if total else ""
    return f"{done:,} of {about}{total:,}{share}"
