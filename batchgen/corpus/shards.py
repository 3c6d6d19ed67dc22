"""Which files are the input: `input.paths` to an ordered list of shards.

A shard's name is its path relative to the root of its entry: the directory itself, the part of a
glob before the first wildcard, or the folder of a single file. So neither the working directory
nor an absolute path is part of a row's identity. Where two roots bring the same name, the roots'
last folders tell them apart. A file that is reached twice counts once, under the first entry.
"""

import difflib
import fnmatch
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from batchgen.config.models import InputConfig
from batchgen.errors import DataError
from batchgen.records import Shard

_FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_EXTENSIONS = ".parquet, .pq, .jsonl, .ndjson, .json or .csv (the last four also with .gz or .zst)"
_WILDCARD = re.compile(r"[*?\[]")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


@dataclass(frozen=True, slots=True)
class _Found:
    """A file, the root that its name is relative to, and whether the user meant this very file."""

    path: Path
    root: Path
    is_from_directory: bool = False


def find_shards(config: InputConfig, *, exclude: Path | None = None) -> list[Shard]:
    """All shards of the job, sorted by name (code points).

    `exclude` is the output directory; an input that reaches into it is refused. Raises DataError
    with every problem of every entry: nothing matched, unreadable, unknown extension, remote.
    """
    problems: list[str] = []
    found: dict[str, _Found] = {}
    for entry in config.paths:
        try:
            for file in _expand(entry, exclude):
                found.setdefault(os.path.realpath(file.path), file)
        except DataError as exc:
            problems += exc.problems
    shards: list[Shard] = []
    files = list(found.values())
    for file, name in zip(files, _names(files), strict=True):
        try:
            shards.append(_shard(file.path, name, config.format))
        except DataError as exc:
            problems += exc.problems
    if problems:
        raise DataError(problems)
    return sorted(shards, key=lambda shard: shard.name)


def _expand(entry: str, exclude: Path | None) -> list[_Found]:
    if _URL.match(entry):
        raise DataError(f"{entry}: remote paths are not supported; copy or mount them")
    path = Path(entry).expanduser()
    if path.is_dir():
        _refuse_output(entry, path, ("**", "*"), exclude)
        files = [_Found(file, path, True) for file in _walk(path)]
        known = [file for file in files if _by_extension(file.path) is not None]
        if not known:
            raise DataError(f"{entry}: no shard in this directory{_holding(files, path)}")
        return known
    if path.exists() or path.is_symlink():
        return [_Found(path, path.parent)]
    if _WILDCARD.search(entry):
        return _glob(entry, path, exclude)
    raise DataError(f"{entry}: no such file or directory{_near_misses(path)}")


def _walk(directory: Path) -> Iterator[Path]:
    """Files below a directory, names beginning with `.` or `_` left out, in a fixed order."""
    visited = set()
    for folder, folders, names in os.walk(directory, onerror=_refuse_folder, followlinks=True):
        visited.add(os.path.realpath(folder))
        folders[:] = [
            name
            for name in sorted(folders)
            if not _is_hidden(name) and os.path.realpath(Path(folder, name)) not in visited
        ]
        yield from (Path(folder, name) for name in sorted(names) if not _is_hidden(name))


def _refuse_folder(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot read this directory: {error.strerror}") from error


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def _glob(entry: str, path: Path, exclude: Path | None) -> list[_Found]:
    parts = path.parts
    first = next(index for index, part in enumerate(parts) if _WILDCARD.search(part))
    root, pattern = Path(*parts[:first]), parts[first:]
    if not root.is_dir():
        raise DataError(f"{entry}: nothing matches{_near_misses(root)}")
    _refuse_output(entry, root, pattern, exclude)
    found: list[_Found] = []
    for match in sorted(root.glob("/".join(pattern))):
        if any(_is_hidden(part) for part in match.relative_to(root).parts):
            continue
        if match.is_dir():
            if pattern[-1] != "**":
                found += [_Found(file, root, True) for file in _walk(match) if _by_extension(file)]
        else:
            found.append(_Found(match, root))
    if pattern[-1] == "**":
        found = [_Found(file, root, True) for file in _walk(root) if _by_extension(file)]
    if not found:
        everything = [_Found(file, root) for file in _walk(root)]
        raise DataError(f"{entry}: nothing matches{_holding(everything, root)}")
    return found


def _refuse_output(entry: str, root: Path, pattern: Sequence[str], exclude: Path | None) -> None:
    """Raise where the entry would take the run's own parts for input, now or at the next run."""
    if exclude is None:
        return
    inside = PurePath(os.path.realpath(exclude), "outputs", "part.parquet")
    real_root = os.path.realpath(root)
    if not inside.is_relative_to(real_root):
        return
    parts = inside.relative_to(real_root).parts
    if any(_is_hidden(part) for part in parts):
        return
    if any(_matches(pattern, parts[:end]) for end in range(1, len(parts) + 1)):
        raise DataError(
            f"{entry}: output inside input: the output directory {exclude} would be read as input;"
            " choose another output.path or a narrower input.paths"
        )


def _matches(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(pattern[1:], parts[skip:]) for skip in range(len(parts) + 1))
    return (
        bool(parts)
        and fnmatch.fnmatchcase(parts[0], pattern[0])
        and _matches(pattern[1:], parts[1:])
    )


def _near_misses(path: Path) -> str:
    """What to say after "no such file": the folder that is missing, or names like this one."""
    missing = path
    while not missing.parent.is_dir():
        missing = missing.parent
    if missing != path:
        path = missing
    try:
        names = sorted(file.name for file in path.parent.iterdir())
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=1)
    reason = f": there is no '{path.name}' in '{path.parent}'"
    return f"{reason}; did you mean '{near[0]}'?" if near else reason


def _holding(files: Sequence[_Found], root: Path) -> str:
    names = [file.path.relative_to(root).as_posix() for file in files[:4]]
    if not names:
        return f"; '{root}' holds no files"
    more = f" and {len(files) - 3} more" if len(files) > 4 else ""
    shown = ", ".join(f"'{name}'" for name in (names[:3] if more else names))
    return f"; '{root}' holds {shown}{more}; shards end in {_EXTENSIONS}"


def _by_extension(path: Path) -> tuple[str, str | None] | None:
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    compression = _COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    if compression is not None:
        suffixes.pop()
    format = _FORMATS.get(suffixes[-1]) if suffixes else None
    return None if format is None else (format, compression)


def _format_of(path: Path, configured: str) -> tuple[str, str | None]:
    format, compression = configured, None
    if configured == "auto":
        by_extension = _by_extension(path)
        if by_extension is None:
            raise DataError(
                f"{path}: the extension does not tell the format (known: {_EXTENSIONS});"
                " set input.format, or leave the file out of input.paths"
            )
        format, compression = by_extension
    else:
        format, _, explicit = configured.partition(".")
        compression = _COMPRESSIONS.get(f".{explicit}") or _COMPRESSIONS.get(path.suffix.lower())
    if format == "parquet" and compression is not None:
        raise DataError(f"{path}: a compressed Parquet file cannot be read; decompress it first")
    return format, compression


def _shard(path: Path, name: str, configured: str) -> Shard:
    format, compression = _format_of(path, configured)
    try:
        status = path.stat()
    except OSError as exc:
        raise DataError(f"{path}: cannot read this file: {exc.strerror}") from exc
    if not path.is_file():
        raise DataError(f"{path}: not a regular file")
    if not os.access(path, os.R_OK):
        raise DataError(f"{path}: cannot read this file: permission denied")
    try:
        name.encode()
    except UnicodeEncodeError as exc:
        raise DataError(f"{name!r}: the file's name is not valid UTF-8; rename it") from exc
    return Shard(
        name=name,
        path=str(path.absolute()),
        format=format,
        compression=compression,
        num_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
    )


def _names(files: Sequence[_Found]) -> list[str]:
    """Names relative to the roots; equal ones begin with as many of the roots' folders as it takes.

    A label never makes a name that another file already has.
    """
    names = [file.path.relative_to(file.root).as_posix() for file in files]
    groups: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        groups.setdefault(name, []).append(index)
    taken = {name for name, indexes in groups.items() if len(indexes) == 1}
    for name in sorted(groups):
        indexes = groups[name]
        if len(indexes) > 1:
            labelled = _labelled(name, [files[index].root for index in indexes], taken)
            taken.update(labelled)
            for index, label in zip(indexes, labelled, strict=True):
                names[index] = label
    return names


def _labelled(name: str, roots: Sequence[Path], taken: set[str]) -> list[str]:
    folders = [root.absolute().parts[1:] for root in roots]
    for depth in range(1, max(map(len, folders)) + 1):
        labelled = ["/".join((*parts[-depth:], name)) for parts in folders]
        if len(set(labelled)) == len(labelled) and taken.isdisjoint(labelled):
            return labelled
    raise DataError(f"'{name}' is reached on several ways that no label can tell apart")
