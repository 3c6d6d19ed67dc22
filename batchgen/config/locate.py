"""Where a key stands in the job file.

The YAML is composed into nodes, which know line and column; from them come the plain values and a
`Place` for each path of keys. A problem with a key points at the key, a problem with a value at
the value.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from batchgen.config.section import KeyPath


@dataclass(frozen=True, slots=True)
class Place:
    """A spot in the job file (1-based line and column), or the override that set a key."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True, slots=True)
class KeyPlaces:
    """Places of one key and of its value."""

    key: Place
    value: Place


def nearest_place(places: Mapping[KeyPath, KeyPlaces], path: KeyPath) -> tuple[KeyPath, KeyPlaces]:
    """The places of this path, or of the closest section above it that the file has."""
    for end in range(len(path), 0, -1):
        if path[:end] in places:
            return path[:end], places[path[:end]]
    return (), places[()]


def dotted(path: KeyPath) -> str:
    """A path as messages write it.

    >>> dotted(("prompt", "messages", 1, "content"))
    'prompt.messages.1.content'
    """
    return ".".join(str(part) for part in path)


def message_line(place: Place, path: KeyPath, message: str) -> str:
    """`place: key: message`; an override's place already names its key."""
    key = dotted(path)
    head = str(place) if not path or str(place) == f"-s {key}" else f"{place}: {key}"
    return f"{head}: {message}"
