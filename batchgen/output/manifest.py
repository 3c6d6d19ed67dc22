"""`manifest.json`: what the run was, and its totals; and `_SUCCESS` beside it.

The manifest is for people and programs that come later, and a resume compares itself with it. What
it holds is decided by the run; here it is a JSON object that is replaced as a whole. `_SUCCESS`
stands beside it only while every input row has its output row: it goes first and comes last.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from batchgen.errors import DataError
from batchgen.output.crashpoints import CrashPoints
from batchgen.output.disk import disk_error, sync_folder, write_atomically
from batchgen.output.layout import RunLayout


def read_manifest(layout: RunLayout) -> dict[str, Any] | None:
    """The manifest of a run directory; None where there is none."""
    try:
        values = orjson.loads(layout.manifest.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise _unreadable(layout, str(exc)) from exc
    if not isinstance(values, dict):
        raise _unreadable(layout, "it holds no JSON object")
    return values


def write_manifest(
    layout: RunLayout, manifest: Mapping[str, Any], *, crash: CrashPoints | None = None
) -> None:
    """Replace the manifest; a kill leaves the old one or the new one, each whole."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    data = orjson.dumps(dict(manifest), option=options)
    write_atomically(
        layout.manifest,
        lambda file: file.write(data),
        crash=crash or CrashPoints.from_environment(),
        steps=("manifest_written", "manifest_renamed"),
    )


def mark_success(layout: RunLayout, *, crash: CrashPoints | None = None) -> None:
    """Write `_SUCCESS`, unless it stands there: the last step of a run that is complete."""
    if layout.success.exists():
        return
    write_atomically(layout.success, lambda file: file.write(b""))
    (crash or CrashPoints.from_environment()).reach("success_written")


def clear_success(layout: RunLayout) -> None:
    """Remove `_SUCCESS`: the first step of a run that will write rows."""
    try:
        layout.success.unlink()
        sync_folder(layout.path)
    except FileNotFoundError:
        return
    except OSError as exc:
        raise disk_error(exc, layout.success) from exc


def _unreadable(layout: RunLayout, reason: str) -> DataError:
    return DataError(
        f"{layout.manifest}: cannot be read ({reason}); restore it, or give the job another "
        "output.path"
    )
