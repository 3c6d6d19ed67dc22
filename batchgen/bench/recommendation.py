"""What the points of a sweep recommend.

Throughput rises with the number of rows in flight and flattens; latency first hardly changes, then
rises in proportion. Three points on this curve have a name:

* the **best**: the most throughput. Where the curve is flat the smallest concurrency counts that
  reaches it, since anything above adds latency alone.
* the **knee**: the most throughput for each second of latency (Kleinrock's power, 1979). Below it
  a percent of throughput costs less than a percent of latency, above it more. With n rows in flight
  the mean latency is n ÷ throughput (Little's law), which is exact where a percentile of a few rows
  is not. Where steps take a + b·n seconds, the knee is at n = a/b.
* the best **under a limit** of latency.

The concurrency of the point that is recommended is also what an autoscaler of a server with this
model needs: it is where a replica is full. A server that is given more queues it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from batchgen.bench.latency_limit import LatencyLimit
from batchgen.bench.sweep_points import SweepPoint

SAME: Final = 0.01
"""Throughputs that differ by less are the same; no repeat is that exact."""
UTILIZATION: Final = 0.8
"""Share of its measured throughput that a replica is planned for: arrivals come in bursts."""


@dataclass(frozen=True, slots=True)
class LimitAnswer:
    """What the sweep says to a limit of latency."""

    text: str
    quantity: str
    limit_s: float
    lowest_s: float | None
    """The lowest value seen; None where the engine does not tell it."""
    lowest_num_running: int | None
    """The concurrency at which it was seen."""


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """Scaling of a server's replicas by the requests that each has in flight."""

    target_num_running: int
    """Requests in flight at which a replica is full: add one when all are."""
    scale_down_below: float
    """Mean requests in flight under which one replica can go."""
    rows_per_s: float
    """Of a full replica."""
    utilization: float
    arrival_rate: float | None
    """Rows that arrive per second."""
    replicas: int | None
    """Replicas for this rate, each at `utilization` of its throughput."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Concurrencies of the points with a name; None where there is no such point."""

    num_running: int | None
    """What is recommended: the best, or the best under the limits where there are any."""
    basis: str
    """`best` or `under_latency`."""
    best: int
    knee: int
    under_latency: int | None
    limits: tuple[LimitAnswer, ...]
    autoscaler: Autoscaler | None


def recommend(
    points: Sequence[SweepPoint],
    limits: Sequence[LatencyLimit] = (),
    arrival_rate: float | None = None,
) -> Recommendation:
    """The points with a name among these, of which there is at least one."""
    best = best_point(points)
    knee = knee_point(points)
    allowed = within(points, limits)
    under = best_point(allowed) if limits and allowed else None
    chosen = under if limits else best
    return Recommendation(
        num_running=None if chosen is None else chosen.num_running,
        basis="under_latency" if limits else "best",
        best=best.num_running,
        knee=knee.num_running,
        under_latency=None if under is None else under.num_running,
        limits=tuple(answer(points, limit) for limit in limits),
        autoscaler=None if chosen is None else autoscaler(chosen, arrival_rate),
    )


def best_point(points: Sequence[SweepPoint]) -> SweepPoint:
    """The smallest concurrency with the highest throughput, or one that is the same."""
    highest = max(point.output_tokens_per_s for point in points)
    same = [point for point in points if point.output_tokens_per_s >= (1 - SAME) * highest]
    return min(same, key=lambda point: point.num_running)


def knee_point(points: Sequence[SweepPoint]) -> SweepPoint:
    """The most throughput per second of mean latency."""
    return max(points, key=lambda point: point.output_tokens_per_s**2 / point.num_running)


def within(points: Sequence[SweepPoint], limits: Sequence[LatencyLimit]) -> list[SweepPoint]:
    """Points that are known to keep all limits."""
    return [point for point in points if all(_keeps(point, limit) for limit in limits)]


def answer(points: Sequence[SweepPoint], limit: LatencyLimit) -> LimitAnswer:
    """The limit, and the lowest value of its quantity that was seen."""
    values = [(value, point) for point in points if (value := _value(point, limit)) is not None]
    lowest, at = min(values, key=lambda pair: pair[0], default=(None, None))
    return LimitAnswer(
        text=limit.text,
        quantity=limit.quantity,
        limit_s=limit.limit_s,
        lowest_s=lowest,
        lowest_num_running=None if at is None else at.num_running,
    )


def autoscaler(point: SweepPoint, arrival_rate: float | None) -> Autoscaler:
    """Scaling by the concurrency of this point."""
    replicas = None if arrival_rate is None else replicas_for(arrival_rate, point.rows_per_s)
    return Autoscaler(
        target_num_running=point.num_running,
        scale_down_below=point.num_running / 2,
        rows_per_s=point.rows_per_s,
        utilization=UTILIZATION,
        arrival_rate=arrival_rate,
        replicas=replicas,
    )


def replicas_for(arrival_rate: float, rows_per_s: float) -> int:
    """Replicas that take `arrival_rate` rows per second, each `UTILIZATION` of `rows_per_s`.

    >>> replicas_for(100, 12.5)
    10
    """
    return max(1, math.ceil(arrival_rate / (rows_per_s * UTILIZATION)))


def _value(point: SweepPoint, limit: LatencyLimit) -> float | None:
    value: float | None = getattr(point, limit.quantity)
    return value


def _keeps(point: SweepPoint, limit: LatencyLimit) -> bool:
    value = _value(point, limit)
    return value is not None and value <= limit.limit_s
