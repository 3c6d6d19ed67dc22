"""Amounts that a job file writes with a unit: shares ("20%") and sizes in bytes ("256 MiB")."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from batchgen.config.section import refusal
from batchgen.config.wording import shown

_PERCENT = re.compile(r"\d+(\.\d+)?%")
_BYTES = re.compile(r"(\d+)\s*(B|kB|MB|GB|KiB|MiB|GiB)")
_UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}


def share_of(text: str) -> float:
    """The share, 0 to 1, that a percentage such as "20%" stands for.

    >>> share_of("0.5%")
    0.005
    """
    return float(text[:-1]) / 100


def _check_rows_or_share(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and _PERCENT.fullmatch(value) and share_of(value) <= 1:
        return value
    hint = f"; write '{value:.10%}'" if isinstance(value, float) and 0 < value < 1 else ""
    hint = re.sub(r"\.?0+%", "%", hint)
    raise refusal(
        f"must be a number of rows (5) or a share of them ('20%'), is {shown(value)}{hint}",
    )


def _check_bytes(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if isinstance(value, str) and (match := _BYTES.fullmatch(value)) and int(match[1]) > 0:
        return int(match[1]) * _UNITS[match[2]]
    raise refusal(
        f"must be a number of bytes above 0, or one with a unit ('256 MiB'), is {shown(value)}"
    )


RowsOrShare = Annotated[
    int | str,
    BeforeValidator(_check_rows_or_share),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^\d+(\.\d+)?%$"},
            ]
        }
    ),
]
"""A number of rows, or a share of them as text such as "20%"."""

ByteCount = Annotated[
    int,
    BeforeValidator(_check_bytes),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^\d+\s*(B|kB|MB|GB|KiB|MiB|GiB)$"},
            ]
        }
    ),
]
"""Bytes, as a number or as text with a unit such as "256 MiB"."""
