"""What a user is willing to wait: `p95=2s`, `ttft_p50=300ms`."""

import re
from dataclasses import dataclass
from math import isfinite
from typing import Final

from batchgen.errors import UsageError

_LIMIT: Final = re.compile(r"(?:(latency|ttft|tpot)_)?(p50|p95)=(.+)")
_DURATION: Final = re.compile(
    r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?"
)
_SECONDS: Final = (3600.0, 60.0, 1.0, 0.001)


@dataclass(frozen=True, slots=True)
class LatencyLimit:
    """At most `limit_s` seconds of one of the quantities of a sweep's points."""

    quantity: str
    """`latency_s_p95`, `ttft_s_p50` ..."""
    limit_s: float
    text: str
    """As the user wrote it."""


def parse_limit(text: str) -> LatencyLimit:
    """A limit on the latency of a whole row, of its first token (ttft), or of the others (tpot).

    Raises UsageError where it is something else.

    >>> parse_limit("p95=1m30s")
    LatencyLimit(quantity='latency_s_p95', limit_s=90.0, text='p95=1m30s')
    >>> parse_limit("ttft_p50=300ms").quantity
    'ttft_s_p50'
    """
    match = _LIMIT.fullmatch(text.strip())
    seconds = None if match is None else parse_seconds(match[3])
    if match is None or not seconds or not isfinite(seconds):
        raise UsageError(
            f"--max-latency {text}: write p50 or p95 and a duration, as in p95=2s, ttft_p95=500ms"
            " or tpot_p50=80ms"
        )
    return LatencyLimit(f"{match[1] or 'latency'}_s_{match[2]}", seconds, text.strip())


def parse_seconds(text: str) -> float | None:
    """A duration in seconds; None where it is none.

    >>> [parse_seconds(text) for text in ("2s", "1.5m", "250ms", "2h30m", "2")]
    [2.0, 90.0, 0.25, 9000.0, None]
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        return None
    return sum(float(part or 0) * unit for part, unit in zip(match.groups(), _SECONDS, strict=True))
