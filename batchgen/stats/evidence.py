"""What is known of a run's speed: the evidence from which a diagnosis is made.

Most of it are sums over the run's batches; what the machine could do at least is given by who knows
the model and the machine. Nothing here is guessed: what a batch does not know stays unknown.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from batchgen.stats.batch import BatchRecord
from batchgen.stats.remedies import UNKNOWN, Settings
from batchgen.stats.totals import BatchTotals


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a run. Times in seconds; None: not known, which is never taken for zero."""

    wall_s: float | None = None
    """Time in which the engine was observed."""
    num_rows: int | None = None
    slots: int | None = None
    """The most sequences that the engine decodes at once."""
    num_running_mean: float | None = None
    drain_s: float | None = None
    """With free slots and nothing to put in them; `tail_s` is a part of it."""
    tail_s: float | None = None
    """With free slots after the last row had entered the engine."""
    blocked_s: float | None = None
    """With free slots and rows waiting in the engine."""
    host_s: float | None = None
    """Between steps, while the engine had rows and stood still."""
    prefill_s: float | None = None
    """What prompt tokens cost, told from the durations of the steps."""
    read_s: float | None = None
    render_s: float | None = None
    write_s: float | None = None
    kv_cache_usage_max: float | None = None
    num_preemptions: int | None = None
    cached_share: float | None = None
    """Prompt tokens out of the prefix cache."""
    roofline_fraction: float | None = None
    """Least time for the work on this machine ÷ time that it took."""
    bound_prefill_s: float | None = None
    bound_decode_s: float | None = None
    """The parts of that least time."""
    num_steps: int | None = None
    critical_batch: float | None = None
    """Sequences up to which another one in a step is nearly free."""
    settings: Settings = UNKNOWN
    """Keys of the job on which remedies depend."""


def evidence_of(
    batches: Sequence[BatchRecord],
    *,
    slots: int | None,
    settings: Settings = UNKNOWN,
    roofline_fraction: float | None = None,
    bound_prefill_s: float | None = None,
    bound_decode_s: float | None = None,
    critical_batch: float | None = None,
) -> Evidence:
    """What the batches of one run say, beside what is given.

    Only batches whose engine was observed count; those of a killed run are not among them.
    """
    totals = BatchTotals()
    for batch in batches:
        totals.add(batch)
    return evidence_of_totals(
        totals,
        slots=slots,
        settings=settings,
        roofline_fraction=roofline_fraction,
        bound_prefill_s=bound_prefill_s,
        bound_decode_s=bound_decode_s,
        critical_batch=critical_batch,
    )


def evidence_of_totals(
    totals: BatchTotals,
    *,
    slots: int | None,
    settings: Settings = UNKNOWN,
    roofline_fraction: float | None = None,
    bound_prefill_s: float | None = None,
    bound_decode_s: float | None = None,
    critical_batch: float | None = None,
) -> Evidence:
    """The same from batches that have been added up."""
    preemptions, steps = totals.sum_of("num_preemptions"), totals.sum_of("num_steps")
    return Evidence(
        wall_s=totals.wall_s or None,
        num_rows=totals.num_rows if totals.wall_s else None,
        slots=slots,
        num_running_mean=totals.num_running_mean,
        drain_s=totals.sum_of("drain_s"),
        tail_s=totals.sum_of("tail_s"),
        blocked_s=totals.sum_of("blocked_s"),
        host_s=totals.sum_of("host_s"),
        prefill_s=totals.prefill_s,
        read_s=totals.sum_of("read_s"),
        render_s=totals.sum_of("render_s"),
        write_s=totals.sum_of("write_s"),
        kv_cache_usage_max=totals.kv_cache_usage_max,
        num_preemptions=None if preemptions is None else int(preemptions),
        cached_share=totals.cached_share,
        num_steps=None if steps is None else int(steps),
        roofline_fraction=roofline_fraction,
        bound_prefill_s=bound_prefill_s,
        bound_decode_s=bound_decode_s,
        critical_batch=critical_batch,
        settings=settings,
    )
