"""Measures what a sweep proposes, against the point that it recommends."""

from collections.abc import Sequence
from statistics import median

from batchgen.bench.proposals import Proposal
from batchgen.bench.steady import LEAST_ROWS, Steady, measure_steady, rows_needed
from batchgen.bench.sweep_points import SweepPoint, spread_of
from batchgen.bench.sweep_rows import SweepRows
from batchgen.config.models import JobConfig
from batchgen.protocols import Engine
from batchgen.schedule.feeds import Stop


def try_order(
    proposal: Proposal,
    point: SweepPoint,
    engine: Engine,
    rows: SweepRows,
    *,
    job: JobConfig,
    repeats: int,
    noise: float,
    stop: Stop,
) -> Proposal:
    """The same rows in the job's order and in the proposed one, in turn.

    Compared are whole trials: ordered rows are not alike at the beginning and in the middle.
    """
    prompts = rows.take(point.num_rows)
    orders = job.batch.order, str(proposal.value)
    rates: dict[str, list[float]] = {order: [] for order in orders}
    for _ in range(repeats):
        for order in orders:
            ordered = rows.ordered(prompts, order)
            trial = measure_steady(engine, ordered, point.num_running, stop, job.stop_early)
            rates[order].append(trial.rows_per_s_in_all)
    before, after = (rates[order] for order in orders)
    spread = max(noise, spread_of(before) or 0.0, spread_of(after) or 0.0)
    return proposal.measured(median(after) / median(before) - 1, spread)


def repeats_at(
    num_running: int,
    engine: Engine,
    rows: SweepRows,
    *,
    num_rows: int,
    job: JobConfig,
    repeats: int,
    stop: Stop,
) -> Sequence[Steady]:
    """Trials of one point on an engine that has just started; it is warmed up before.

    They have `num_rows` rows, or more where so many in flight need more.
    """
    few = min(num_running, LEAST_ROWS)
    measure_steady(engine, rows.take(2 * few + 2), few, stop, job.stop_early)
    prompts = rows.take(max(num_rows, rows_needed(num_running)))
    return [
        measure_steady(engine, prompts, num_running, stop, job.stop_early) for _ in range(repeats)
    ]
