"""How long the prompts of a sample are: the numbers behind every estimate, and their histogram."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from batchgen.stats.meter import percentiles

MOST_BINS: Final = 12
_SKEWED: Final = 20
"""Lengths that differ by more than this factor get bins of equal ratios."""


@dataclass(frozen=True, slots=True)
class LengthBin:
    """Rows with `first` to `last` tokens, both included."""

    first: int
    last: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class LengthStats:
    """Tokens of a sample's prompts."""

    num_rows: int
    mean: float
    min: int
    p50: float
    p95: float
    max: int


def length_stats(lengths: Sequence[int]) -> LengthStats | None:
    """Mean, percentiles and extremes; None without values."""
    p50, p95 = percentiles([float(length) for length in lengths])
    if p50 is None or p95 is None:
        return None
    mean = sum(lengths) / len(lengths)
    return LengthStats(len(lengths), mean, min(lengths), p50, p95, max(lengths))


def histogram(lengths: Sequence[int]) -> tuple[LengthBin, ...]:
    """At most `MOST_BINS` bins that hold all values: of equal width, or doubling where skewed.

    >>> [(bin.first, bin.last, bin.num_rows) for bin in histogram([10, 12, 19, 30])]
    [(10, 11, 1), (12, 13, 1), (14, 15, 0), (16, 17, 0), (18, 19, 1), (20, 21, 0), (22, 23, 0), \
(24, 25, 0), (26, 27, 0), (28, 29, 0), (30, 31, 1)]
    """
    if not lengths:
        return ()
    edges = _edges(min(lengths), max(lengths))
    counts = [0] * (len(edges) - 1)
    for length in lengths:
        counts[next(i for i, edge in enumerate(edges[1:]) if length < edge)] += 1
    return tuple(
        LengthBin(first, end - 1, count)
        for first, end, count in zip(edges, edges[1:], counts, strict=False)
    )


def _edges(least: int, most: int) -> list[int]:
    if most > _SKEWED * max(least, 1):
        factor = 2 ** math.ceil(math.log2((most + 1) / max(least, 1)) / MOST_BINS)
        edges = [2 ** int(math.log2(max(least, 1)))] if least else [0, 1]
        while edges[-1] <= most:
            edges.append(max(edges[-1] * factor, 1))
        return edges
    width = _round_width((most - least + 1) / MOST_BINS)
    first = least // width * width
    return list(range(first, most + width + 1, width))


def _round_width(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, … that is no smaller."""
    power = 10 ** max(0, math.floor(math.log10(max(least, 1))))
    steps = (step * power for step in (1, 2, 5, 10))
    return next(int(width) for width in steps if width >= least)
