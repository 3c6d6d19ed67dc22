"""Text of strangers, fit to be shown.

Documents and model outputs are hostile text: a control character in one of them could move the
cursor, retitle the window, or hide and reorder what stands beside it, in a browser as well as in
a terminal. All that is shown passes `printable` first. `counted` is for numbers of things.
"""

import re
from typing import Final

_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff]"
)


def printable(text: str) -> str:
    """`text` with characters that a terminal would obey, or not show, written as escapes.

    Line feeds and tabs stay.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def shortened(text: str, max_chars: int = 300) -> str:
    """One line of at most about `max_chars` characters; the middle is left out and counted."""
    line = text.replace("\n", "\\n")
    if len(line) <= max_chars:
        return line
    head, tail = max_chars * 2 // 3, max_chars // 3
    return f"{line[:head]} [... {len(line) - head - tail:,} characters ...] {line[-tail:]}"


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "run"), counted(1200, "row")
    ('1 run', '1,200 rows')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
