"""Numbers as people read them; what is not known is a hyphen."""

from datetime import UTC, datetime
from typing import Final

from batchgen.monitor.printable import counted as counted

UNKNOWN: Final = "-"
_LARGE: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def compact(value: float) -> str:
    """At most three digits, with a letter for thousands and more: for axes.

    >>> [compact(value) for value in (0, 0.0123, 7.0, 64, 1500, 2_345_678)]
    ['0', '0.0123', '7', '64', '1.5k', '2.35M']
    """
    for limit, letter in _LARGE:
        if abs(value) >= 0.9995 * limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def count(value: float | None) -> str:
    """A whole number.

    >>> count(1234567), count(None)
    ('1,234,567', '-')
    """
    return UNKNOWN if value is None else f"{value:,.0f}"


def figure(value: float | None) -> str:
    """A measured number, with the digits that mean something.

    >>> [figure(value) for value in (1646.05, 61.854, 2.5, 0.03417, 0, None)]
    ['1,646', '61.9', '2.50', '0.0342', '0', '-']
    """
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    digits = next((d for limit, d in ((100, 0), (10, 1), (1, 2)) if abs(value) >= limit), None)
    return f"{value:.3g}" if digits is None else f"{value:,.{digits}f}"


def share(value: float | None) -> str:
    """A share as a percentage.

    >>> [share(value) for value in (1.0, 0.4253, 0.0015, 0.00004, 0, None)]
    ['100 %', '42.5 %', '0.15 %', '0.004 %', '0 %', '-']
    """
    if value is None:
        return UNKNOWN
    if value in (0, 1):
        return f"{100 * value:.0f} %"
    return f"{100 * value:.2g} %" if abs(value) < 0.01 else f"{100 * value:.1f} %"


def change(ratio: float | None) -> str:
    """A ratio as a gain or a loss.

    >>> change(0.77), change(1.5), change(None)
    ('-23 %', '+50 %', '-')
    """
    return UNKNOWN if ratio is None else f"{100 * (ratio - 1):+.0f} %"


def span(seconds: float | None) -> str:
    """A duration with two units at most.

    >>> [span(value) for value in (0.0123, 5.25, 75, 7500, 200_000, None)]
    ['0.012 s', '5.25 s', '1 min 15 s', '2 h 05 min', '2 d 7 h', '-']
    """
    if seconds is None:
        return UNKNOWN
    if seconds < 59.5:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def size(num_bytes: float | None) -> str:
    """Bytes with a unit.

    >>> size(2_500_000), size(12), size(None)
    ('2.5 MB', '12 B', '-')
    """
    if num_bytes is None:
        return UNKNOWN
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def moment(text: str | None) -> str:
    """An ISO time in UTC, to the second; the text itself where it is none.

    >>> moment("2026-01-31T23:00:00.5+01:00")
    '2026-01-31 22:00:00'
    """
    if not text:
        return UNKNOWN
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return text


def day(text: str) -> str:
    """Month and day of an ISO time; the beginning of the text where it is none.

    >>> day("2026-01-31T23:00:00+00:00")
    '01-31'
    """
    return moment(text)[5:10] if moment(text) != text else text[:10]


def time_unit(seconds: float) -> tuple[float, str]:
    """What to divide seconds by for an axis of this length, and the unit's name.

    >>> time_unit(7200)
    (60.0, 'minutes')
    """
    if seconds >= 4 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if seconds >= 240 else (1.0, "seconds")
