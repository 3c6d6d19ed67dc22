"""Whether a run is alive, seen from outside: its `progress.json`, its process, `_SUCCESS`.

A run that was killed cannot say so. Its last `progress.json` still names a phase of work, but the
process behind it is gone; that difference is the whole test. A process id alone proves nothing
(numbers are used again), so the process must also be older than the file's last change. From
another host only the age of the file can be judged.
"""

import json
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import psutil

from batchgen.errors import DataError

RunState = Literal["running", "done", "stopped", "killed"]
FINAL_PHASES: Final = ("done", "stopped", "failed")
FRESH_S: Final = 90.0
"""A run on another host counts as alive when its file is no older than this."""


def read_progress(path: Path) -> dict[str, Any] | None:
    """The content of a `progress.json`; None where there is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise DataError(f"{path}: cannot be read: {exc}") from exc
    if not isinstance(document, dict) or not _is_progress(document):
        raise DataError(f"{path}: is not a progress file of batchgen")
    return document


def _is_progress(document: Mapping[str, Any]) -> bool:
    """Whether it says what the state of a run is told by."""
    if document.get("phase") in FINAL_PHASES:
        return True
    kinds = {"phase": str, "updated_at": str, "host": str, "pid": int}
    if not all(isinstance(document.get(key), kind) for key, kind in kinds.items()):
        return False
    try:
        return datetime.fromisoformat(document["updated_at"]).tzinfo is not None
    except ValueError:
        return False


def run_state(progress: dict[str, Any] | None, *, is_complete: bool) -> RunState:
    """State of the latest run; `is_complete`: every input row has its output row (`_SUCCESS`)."""
    if progress is not None and progress.get("phase") not in FINAL_PHASES:
        if is_alive(progress):
            return "running"
        return "done" if is_complete else "killed"
    return "done" if is_complete else "stopped"


def is_alive(progress: dict[str, Any]) -> bool:
    """Whether the process that wrote this file still runs."""
    updated_at = datetime.fromisoformat(progress["updated_at"]).timestamp()
    if progress.get("host") != socket.gethostname():
        return datetime.now(UTC).timestamp() - updated_at <= FRESH_S
    try:
        process = psutil.Process(progress["pid"])
        return bool(process.create_time() <= updated_at + 1) and process.status() != "zombie"
    except psutil.NoSuchProcess:
        return False
