"""How long a job takes, what it costs, and how many replicas a deadline needs.

The roofline of the sequences that fit is what the job takes at least. No engine reaches it; what it
reached before on this job is the best guess of what it will reach again, and published runs are the
second best.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from batchgen.capacity.fit import EngineLimits, Fit
from batchgen.capacity.geometry import Geometry
from batchgen.capacity.rates import Rates
from batchgen.capacity.roofline import (
    Bound,
    Work,
    at_least_s,
    critical_batch,
    decode_step_parts_s,
    prefill_tokens_per_s,
)

GPU_SHARES: Final = (0.9, 0.55)
"""Of the roofline, at the faster and the slower end of what is published."""
GPU_HOST_S: Final = (10e-6, 60e-6)
"""Of the host, for an output token: what small models wait for."""
GPU_SOURCE: Final = (
    "published throughput of vLLM on one H100 (huggingface/datatrove, examples/inference/benchmark:"
    " 14 dense models, read at 1,500 tokens of context)"
)
CPU_SHARES: Final = (0.5, 0.2)
CPU_SOURCE: Final = "runs of SmolLM2-135M on two shared cores (docs/capacity.md)"


@dataclass(frozen=True, slots=True)
class Pace:
    """The roofline of a replica at this job's lengths: rates that nothing exceeds."""

    num_running: int
    """Sequences in a decode step: what the KV cache holds, the slots, or all rows."""
    limited_by: str
    """`kv_cache`, `slots` or `rows`: what holds `num_running` down."""
    prefill_tokens_per_s: float
    decode_step_s: float
    decode_tokens_per_s: float
    decode_bound: str
    """`memory` or `arithmetic`."""
    critical_batch: float
    bound: Bound
    """Of the whole job."""


def pace(
    geometry: Geometry, rates: Rates, fit: Fit, limits: EngineLimits, work: Work
) -> Pace | None:
    """The roofline of `work` (whose `num_running_mean` is not looked at); None: nothing fits."""
    if not fit.max_concurrent_sequences or work.num_rows <= 0:
        return None
    running, limited_by = min(
        (limits.max_num_seqs, "slots"),
        (work.num_sequences or work.num_rows, "rows"),
        (fit.max_concurrent_sequences, "kv_cache"),
    )
    at_once = replace(work, num_running_mean=running)
    read_s, compute_s = decode_step_parts_s(geometry, rates, running, at_once.context_mean)
    step_s = max(read_s, compute_s)
    return Pace(
        num_running=running,
        limited_by=limited_by,
        prefill_tokens_per_s=prefill_tokens_per_s(
            geometry, rates, max(1.0, work.num_prompt_tokens / work.num_rows)
        ),
        decode_step_s=step_s,
        decode_tokens_per_s=running / step_s,
        decode_bound="memory" if read_s >= compute_s else "arithmetic",
        critical_batch=critical_batch(geometry, rates),
        bound=at_least_s(geometry, rates, at_once),
    )


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The share of the roofline that an engine reaches: a range, or what it reached before."""

    low: float
    high: float
    source: str
    is_measured: bool = False


def published_efficiency(bound_s: float, num_output_tokens: int, *, on_cpu: bool) -> Efficiency:
    """The range of what was published, for a job that was not measured yet.

    On a GPU a time is a share of the roofline and some microseconds of the host for each token,
    which is nearly all of it for a model of 0.1 billion parameters and little from 4 billion on.
    """
    if on_cpu:
        high, low = CPU_SHARES
        return Efficiency(low, high, CPU_SOURCE)
    high, low = (
        bound_s / (bound_s / share + host_s * num_output_tokens)
        for share, host_s in zip(GPU_SHARES, GPU_HOST_S, strict=True)
    )
    return Efficiency(low, high, GPU_SOURCE)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Time and money for the whole job, from the faster to the slower end of the range."""

    low_s: float
    high_s: float
    device_hours_low: float
    device_hours_high: float
    cost_low: float | None
    cost_high: float | None
    replicas: int | None
    """Enough for the deadline at the slower end; None without deadline, or where none is left."""


def estimate(
    bound_s: float,
    efficiency: Efficiency,
    *,
    num_devices: int,
    price: float | None,
    deadline_s: float | None,
    start_s: float,
) -> Estimate:
    """What a job with this bound takes. `price` is that of one device for an hour.

    `start_s` is what each replica needs before its first row, and counts against the deadline.
    """
    low_s, high_s = bound_s / efficiency.high, bound_s / efficiency.low
    hours = [seconds * num_devices / 3600 for seconds in (low_s, high_s)]
    costs = [None if price is None else hour * price for hour in hours]
    replicas = None
    if deadline_s is not None and deadline_s > start_s:
        replicas = max(1, ceil(high_s / (deadline_s - start_s)))
    return Estimate(low_s, high_s, hours[0], hours[1], costs[0], costs[1], replicas)
