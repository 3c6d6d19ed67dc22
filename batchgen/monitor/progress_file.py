"""`.batchgen/progress.json`: what a run says of itself, for whoever looks from outside.

A run replaces it each second, so its age is a heartbeat, and writes how it ended as its last word.
The word comes behind everything else (totals, manifest, `_SUCCESS`), so that whoever waits for it
finds the output in place. Reading it is `state.py`.
"""

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

FORMAT_VERSION: Final = 1
FINISHING: Final = "finish"
"""Phase between the last row and `close_progress`."""
ROW_KEYS: Final = ("rows_done", "rows_total", "total_is_estimate", "rows_failed", "failed_by_type")
"""Keys that speak of the whole output, not of one run."""


def run_identity(run_id: str) -> dict[str, Any]:
    """The keys that say whose file it is; `started_at` is now."""
    return {
        "format_version": FORMAT_VERSION,
        "run_id": run_id,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started_at": utc_now(),
    }


def close_progress(
    path: Path,
    identity: Mapping[str, Any],
    *,
    phase: str,
    exit_code: int,
    reason: str | None,
    rows: Mapping[str, Any] | None,
) -> None:
    """How the run of this identity ended, and with how many `rows` (`ROW_KEYS`; None: not counted).

    One that ended before its first progress takes its rows over from the run before, if need be;
    where nothing has changed since then, a night without news leaves the file as it is. Raises
    OSError.
    """
    document = _read_object(path)
    counted = document if rows is None else rows
    known = {key: counted[key] for key in ROW_KEYS if key in counted}
    end = {"phase": phase, "exit_code": exit_code, "reason": reason, **known}
    if document.get("run_id") != identity["run_id"]:
        if end.items() <= document.items():
            return
        document = dict(identity)
    document |= {**end, "updated_at": utc_now()}
    replace_text(path, json.dumps(document, indent=1) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Replace a file as a whole, so that a reader sees the old text or the new one.

    Not synced: what a power cut takes here, the next second would have replaced. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def utc_now() -> str:
    """This second, as ISO 8601 with its offset."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
