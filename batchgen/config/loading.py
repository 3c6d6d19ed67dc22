"""A job file to a validated `JobConfig`: YAML, environment variables, overrides, validation.

All problems come out together, each with its place: duplicate and unknown keys, missing variables,
wrong types and values, and the rules between fields.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from batchgen.config.document import UNKNOWN, Document
from batchgen.config.locate import KeyPlaces, Place, message_line, nearest_place
from batchgen.config.models import JobConfig
from batchgen.config.section import KeyPath
from batchgen.config.wording import in_words, nearest, shown
from batchgen.errors import JobFileError, UsageError

Located = tuple[Place, KeyPath, str]

_RAW_TEXT_KEYS = frozenset({"prompt.template", "prompt.chat_template"})
"""Overrides of these take the text as it is, so that a template needs no YAML quotes in a shell."""


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> JobConfig:
    """Read, override (`sampling.max_tokens=64`) and validate a job file.

    Raises JobFileError with every problem as `file:line:column: key: message`, and UsageError for
    an override that is not of the form `key=value`. Paths in the job stay as they are written.
    """
    source = str(path)
    document = Document(source, os.environ).read(_read_text(Path(path)))
    if document.data is None:
        raise JobFileError(f"{source}: is empty; 'batchgen init' writes a job file to start from")
    if document.data is UNKNOWN:
        raise JobFileError(_lines(document.problems))
    if not isinstance(document.data, dict):
        raise JobFileError(
            f"{source}:1:1: a job file is a mapping of sections (input, prompt, model, …),"
            f" this is {shown(document.data)}"
        )
    for override in overrides:
        _apply(override, document)
    return _validated(document, source)


def _lines(problems: Iterable[Located]) -> list[str]:
    """Lines for the user in the order of the file, overrides last."""
    ordered = sorted(
        problems, key=lambda found: (found[0].line == 0, found[0].line, found[0].column)
    )
    return list(dict.fromkeys(message_line(*found) for found in ordered))


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise JobFileError(f"{path}: no such file{_nearest_file(path)}") from None
    except IsADirectoryError:
        raise JobFileError(f"{path}: is a directory; name a job file in it") from None
    except UnicodeDecodeError as exc:
        line = exc.object[: exc.start].count(b"\n") + 1
        raise JobFileError(f"{path}:{line}: is not UTF-8; save the file as UTF-8") from None
    except OSError as exc:
        raise JobFileError(f"{path}: cannot be read: {exc.strerror}") from exc


def _nearest_file(path: Path) -> str:
    try:
        beside = [str(path.with_name(other.name)) for other in path.parent.glob("*.y*ml")]
    except OSError:
        return ""
    return nearest(str(path), beside)


def _apply(override: str, document: Document) -> None:
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not all(key.split(".")):
        raise UsageError(f"-s {override}: write it as key=value, as in -s sampling.max_tokens=64")
    path = tuple(int(part) if part.isdecimal() else part for part in key.split("."))
    place = Place(f"-s {key}")
    _forget(document, path)
    document.places[path] = KeyPlaces(place, place)
    _put(document, path, _override_value(key, path, text, document))


def _override_value(key: str, path: KeyPath, text: str, document: Document) -> Any:
    if key in _RAW_TEXT_KEYS and text and text[0] not in "'\"" and text != "null":
        return text
    value = Document(f"-s {key}", document.environment, base=path).read(text)
    document.places |= value.places
    document.problems += value.problems
    return value.data


def _forget(document: Document, path: KeyPath) -> None:
    """Drop places and problems of the value that an override replaces."""
    depth = len(path)
    for known in [known for known in document.places if known[:depth] == path]:
        del document.places[known]
    document.problems[:] = [found for found in document.problems if found[1][:depth] != path]


def _put(document: Document, path: KeyPath, value: Any) -> None:
    place = document.places[path].key
    data = document.data
    for depth, part in enumerate(path[:-1], start=1):
        if isinstance(data, dict) and data.get(part) is None:
            data[part] = {}
            document.places.setdefault(path[:depth], KeyPlaces(place, place))
        if not _has(data, part):
            break
        data = data[part]
    last = path[-1]
    if isinstance(data, dict) or _has(data, last):
        data[last] = value
    elif data is not UNKNOWN:
        message = f"there is nothing to override, the value above it is {shown(data)}"
        document.problems.append((place, path, message))


def _has(data: Any, part: str | int) -> bool:
    if isinstance(data, dict):
        return part in data
    return isinstance(data, list) and isinstance(part, int) and part < len(data)


def _validated(document: Document, source: str) -> JobConfig:
    data = {"name": Path(source).stem, **document.data}
    problems = list(document.problems)
    try:
        job = JobConfig.model_validate(data)
    except ValidationError as exc:
        problems += _located(exc, document, data)
    else:
        if not problems:
            places = {path: str(spots.key) for path, spots in document.places.items()}
            return job.located(source, places)
    raise JobFileError(_lines(problems))


def _located(exc: ValidationError, document: Document, data: Any) -> Iterator[Located]:
    for path, message in in_words(exc, JobConfig):
        if not _is_reported(data, path):
            found, spots = nearest_place(document.places, path)
            at_key = found != path or message.startswith("no such key")
            yield spots.key if at_key else spots.value, path, message


def _is_reported(data: Any, path: KeyPath) -> bool:
    """Whether the value on this path already has a problem of its own."""
    for part in path:
        if not _has(data, part):
            return data is UNKNOWN
        data = data[part]
    return data is UNKNOWN
