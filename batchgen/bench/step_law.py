"""The law under batching: a decode step with n sequences takes t(n) = a + b·n seconds.

`a` is what all sequences of a step share, above all one read of the weights. `b` is what each of
them adds: its arithmetic, and the read of its own KV cache. One sequence alone costs a + b a token,
one of n costs a/n + b, so batching buys n·(a + b)/(a + b·n), and however many sequences there are,
never more than 1 + a/b.

A straight line is a model, not the truth: matrix products of a few rows are slower for each row
than those of many. So the fit reports its largest error. It minimizes relative errors, as a step
of 64 sequences takes many times as long as a step of one, and both should be right.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LEAST_POINTS: Final = 3
"""A line goes through any two points, and says nothing about a third."""


@dataclass(frozen=True, slots=True)
class StepPoint:
    """A measured step: seconds of a decode step with so many sequences in it."""

    num_running: int
    step_s: float


@dataclass(frozen=True, slots=True)
class StepLaw:
    """A fitted law. Seconds; `b_s` may be 0 where more sequences cost nothing that shows."""

    a_s: float
    b_s: float
    max_error: float
    """Largest |law - measured| ÷ measured over the points of the fit."""

    def step_s(self, num_running: float) -> float:
        """Seconds of a step with so many sequences."""
        return self.a_s + self.b_s * num_running

    def speedup(self, num_running: float) -> float:
        """Decoding so many sequences at once against one after another.

        >>> round(StepLaw(0.020, 0.002, 0.0).speedup(64), 2)
        9.51
        """
        return num_running * self.step_s(1) / self.step_s(num_running)

    @property
    def asymptote(self) -> float | None:
        """The speed-up that no batch size exceeds, 1 + a/b; None where b is 0.

        >>> StepLaw(0.020, 0.002, 0.0).asymptote
        11.0
        """
        return 1 + self.a_s / self.b_s if self.b_s > 0 else None


def fit_step_law(points: Sequence[StepPoint]) -> StepLaw | None:
    """The line with the least sum of squared relative errors, with a and b not below 0.

    None where fewer than three different numbers of sequences were measured.

    >>> law = fit_step_law([StepPoint(n, 0.020 + 0.002 * n) for n in (1, 4, 16, 64)])
    >>> round(law.a_s, 6), round(law.b_s, 6), round(law.max_error, 6)
    (0.02, 0.002, 0.0)
    """
    if len({point.num_running for point in points}) < LEAST_POINTS:
        return None
    a_s, b_s = _least_squares(points)
    if b_s < 0:
        a_s, b_s = _flat(points), 0.0
    elif a_s < 0:
        a_s, b_s = 0.0, _proportional(points)
    error = max(abs(a_s + b_s * p.num_running - p.step_s) / p.step_s for p in points)
    return StepLaw(a_s, b_s, error)


def relative_errors(law: StepLaw, points: Sequence[StepPoint]) -> list[float]:
    """(law - measured) ÷ measured for each point."""
    return [(law.step_s(point.num_running) - point.step_s) / point.step_s for point in points]


def _least_squares(points: Sequence[StepPoint]) -> tuple[float, float]:
    """a and b of the least sum of ((a + b·n)/t - 1)²: the normal equations, solved."""
    inverse = [1 / point.step_s for point in points]
    scaled = [point.num_running / point.step_s for point in points]
    aa, ab = _dot(inverse, inverse), _dot(inverse, scaled)
    bb, a_side, b_side = _dot(scaled, scaled), sum(inverse), sum(scaled)
    determinant = aa * bb - ab * ab
    return (
        (a_side * bb - b_side * ab) / determinant,
        (b_side * aa - a_side * ab) / determinant,
    )


def _flat(points: Sequence[StepPoint]) -> float:
    inverse = [1 / point.step_s for point in points]
    return sum(inverse) / _dot(inverse, inverse)


def _proportional(points: Sequence[StepPoint]) -> float:
    scaled = [point.num_running / point.step_s for point in points]
    return sum(scaled) / _dot(scaled, scaled)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(left, right, strict=True))
