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
from tempfile import TemporaryFile
from typing import BinaryIO

from batchgen.errors import DataError
from batchgen.output.crashpoints import CrashPoints

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "a file would grow beyond the limit of the system (ulimit -f); raise it",
    errno.EROFS: "the file system is read-only; make it writable or {elsewhere}",
    errno.EACCES: "permission denied; make it writable for you or {elsewhere}",
    errno.EPERM: "not permitted; make it writable for you or {elsewhere}",
    errno.EIO: "the disk reports an error; check it or {elsewhere}",
    errno.ENOTDIR: "a file stands where a folder is needed; move it away or {elsewhere}",
}


def disk_error(exc: OSError, path: Path, *, in_run: bool = True) -> DataError:
    """A failed write as a sentence: where, why, what to do.

    `in_run` False: it is the file of a command that has no rows to continue with.
    """
    reason = _REMEDIES.get(exc.errno or 0, os.strerror(exc.errno) if exc.errno else str(exc))
    elsewhere = "change output.path" if in_run else "name another place"
    reason = reason.replace("{elsewhere}", elsewhere)
    if not in_run:
        return DataError(f"{path}: cannot write: {reason}")
    return DataError(
        f"{path}: cannot write: {reason}. Finished rows are kept; the same command continues"
    )


def write_atomically(
    path: Path,
    write: Callable[[BinaryIO], object],
    *,
    crash: CrashPoints | None = None,
    steps: tuple[str, str] | None = None,
    in_run: bool = True,
) -> None:
    """Replace `path` by what `write` writes. `steps`: crash points before and after the rename.

    `in_run`: see `disk_error`.
    """
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
        raise disk_error(exc, path, in_run=in_run) from exc


def sync_folder(folder: Path) -> None:
    """Make new and removed names in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, *, in_run: bool = True) -> None:
    """Create `folder` and what is above it. Raises DataError where that cannot be."""
    if folder.is_dir():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
    except OSError as exc:
        raise disk_error(exc, folder, in_run=in_run) from exc


def try_folder(folder: Path) -> None:
    """Find out whether files can be written into `folder`, and leave no trace of it.

    Raises DataError where they cannot: what takes minutes to find should not be lost for that.
    """
    made: list[Path] = []
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as exc:
        raise disk_error(exc, folder, in_run=False) from exc
    finally:
        for path in made:
            with suppress(OSError):
                path.rmdir()


def remove_temporaries(folder: Path) -> None:
    """Remove what a killed `write_atomically` left in `folder` or below."""
    for path in folder.rglob(".*.tmp"):
        path.unlink(missing_ok=True)
