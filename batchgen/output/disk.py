"""Writing so that a file is either the old one or the new one, whatever happens.

Temporary file beside the target, fsync, rename, fsync of the folder: the rename is the moment at
which the new content exists, and without the last fsync it might be forgotten at a power cut.
Errors of the file system are turned into sentences here.
"""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from batchgen.errors import DataError
from batchgen.output.crashpoints import CrashPoints

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "a file would grow beyond the limit of the system (ulimit -f); raise it",
    errno.EROFS: "the file system is read-only; make it writable or change output.path",
    errno.EACCES: "permission denied; make it writable for you or change output.path",
    errno.EPERM: "not permitted; make it writable for you or change output.path",
    errno.EIO: "the disk reports an error; check it or change output.path",
    errno.ENOTDIR: "a file stands where a folder is needed; move it away or change output.path",
}


def disk_error(exc: OSError, path: Path) -> DataError:
    """A failed write as a sentence: where, why, what to do."""
    reason = _REMEDIES.get(exc.errno or 0, os.strerror(exc.errno) if exc.errno else str(exc))
    return DataError(
        f"{path}: cannot write: {reason}. Finished rows are kept; the same command continues"
    )


def write_atomically(
    path: Path,
    write: Callable[[BinaryIO], object],
    *,
    crash: CrashPoints | None = None,
    steps: tuple[str, str] | None = None,
) -> None:
    """Replace `path` by what `write` writes. `steps`: crash points before and after the rename."""
    crash = crash or CrashPoints()
    before, after = steps or ("", "")
    temporary = path.parent / f".{path.name}.tmp"
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        crash.reach(before)
        temporary.replace(path)
        crash.reach(after)
        sync_folder(path.parent)
    except OSError as exc:
        with suppress(OSError):  # where nothing can be written, nothing may be removed either
            temporary.unlink(missing_ok=True)
        raise disk_error(exc, path) from exc


def sync_folder(folder: Path) -> None:
    """Make new and removed names in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create `folder` and what is above it. Raises DataError where that cannot be."""
    if folder.is_dir():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
    except OSError as exc:
        raise disk_error(exc, folder) from exc


def remove_temporaries(folder: Path) -> None:
    """Remove what a killed `write_atomically` left in `folder` or below."""
    for path in folder.rglob(".*.tmp"):
        path.unlink(missing_ok=True)
