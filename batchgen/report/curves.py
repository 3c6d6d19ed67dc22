"""Batches as curves over time, thinned so that a dip of one batch in ten thousand stays visible.

The axis is the time in which rows were generated: the batches of a replica one behind the other,
the runs joined end to end, so that two nights are not two spikes with a day between them. What
replicas did at the same time is added up (rates, slots) or averaged (shares, latencies).
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from batchgen.report.arrays import Floats, floats
from batchgen.report.records import Curve

MAX_STRETCHES: Final = 400
"""A chart has some 450 pixels; more points only make the file larger."""
GAP_S: Final = 5.0
"""A shorter time between two batches is the reading of two clocks, not a pause."""
ADDED_UP: Final = {
    "rows_per_s": "rows_per_s",
    "output_tokens_per_s": "output_tokens_per_s",
    "total_tokens_per_s": "total_tokens_per_s",
    "num_running": "num_running_mean",
}
"""Curve: column of `batches/`; replicas add up."""
AVERAGED: Final = {
    "kv_cache_usage": "kv_cache_usage_max",
    "cached_share": "cached_share",
    "ttft_s_p50": "ttft_s_p50",
    "ttft_s_p95": "ttft_s_p95",
    "latency_s_p50": "latency_s_p50",
    "latency_s_p95": "latency_s_p95",
}
"""The same for quantities of which replicas have their own."""


def batch_curves(
    batches: pa.Table, max_stretches: int = MAX_STRETCHES
) -> tuple[tuple[Curve, ...], tuple[float, ...]]:
    """The curves of these batches, and where on their axis each run but the first begins."""
    starts, ends, run_starts = joined_times(batches)
    curves = [
        curve(name, starts, ends, _values(batches, column), is_average, max_stretches)
        for is_average, names in ((False, ADDED_UP), (True, AVERAGED))
        for name, column in names.items()
    ]
    return tuple(item for item in curves if item is not None), run_starts


def _values(batches: pa.Table, column: str) -> Floats:
    if column != "cached_share":
        return floats(batches[column])
    prompt = floats(batches["num_prompt_tokens"])
    cached = floats(batches["num_cached_tokens"])
    shares = np.full(len(prompt), np.nan)
    np.divide(cached, prompt, out=shares, where=prompt > 0)
    return shares


def joined_times(batches: pa.Table) -> tuple[Floats, Floats, tuple[float, ...]]:
    """Start and end of each batch on the joined axis, and where each run but the first begins."""
    run_ids = batches["run_id"].to_pylist()
    clock = floats(batches["started_at"]) / 1e6
    walls = np.nan_to_num(floats(batches["wall_s"]))
    starts = np.zeros(batches.num_rows)
    run_starts: list[float] = []
    latest = 0.0
    ends: dict[int, tuple[float, float]] = {}
    for index, replica in enumerate(batches["replica"].to_pylist()):
        if index == 0 or run_ids[index] != run_ids[index - 1]:
            beginning, ends = (latest, clock[index]), {}
            run_starts += [latest] if index else []
        # The end of this replica's last batch: on the axis, and by the clock.
        end, clock_end = ends.get(replica, beginning)
        pause_s = clock[index] - clock_end
        starts[index] = end + (pause_s if pause_s >= GAP_S else 0.0)
        ends[replica] = (starts[index] + walls[index], clock[index] + walls[index])
        latest = max(latest, ends[replica][0])
    return starts, starts + walls, tuple(run_starts)


def curve(
    name: str,
    starts: Floats,
    ends: Floats,
    values: Floats,
    is_average: bool,
    max_stretches: int = MAX_STRETCHES,
) -> Curve | None:
    """A quantity that is known from `starts` to `ends` as one curve; None where it never is.

    What overlaps is averaged or added up.
    """
    is_long = ends > starts
    if not np.isfinite(values[is_long]).any():
        return None
    edges, levels = step_function(starts[is_long], ends[is_long], values[is_long], is_average)
    is_thinned = len(levels) > max_stretches
    if is_thinned:
        edges, mean, low, high = thinned(edges, levels, max_stretches)
    else:
        mean = low = high = levels
    return Curve(name, is_thinned, tuple(_rounded(edges)), *map(_known, (mean, low, high)))


def step_function(
    starts: Floats, ends: Floats, values: Floats, is_average: bool
) -> tuple[Floats, Floats]:
    """Edges, and the level between each two of them; NaN where nothing is known."""
    edges = np.unique(np.concatenate([starts, ends]))
    is_known = np.isfinite(values)
    begin = np.searchsorted(edges, starts[is_known])
    end = np.searchsorted(edges, ends[is_known])
    total, count = np.zeros(len(edges)), np.zeros(len(edges))
    np.add.at(total, begin, values[is_known])
    np.subtract.at(total, end, values[is_known])
    np.add.at(count, begin, 1)
    np.subtract.at(count, end, 1)
    total, count = np.cumsum(total)[:-1], np.cumsum(count)[:-1]
    divisor = np.maximum(count, 1) if is_average else 1
    return edges, np.where(count > 0, total / divisor, np.nan)


def thinned(
    edges: Floats, levels: Floats, num_stretches: int
) -> tuple[Floats, Floats, Floats, Floats]:
    """`num_stretches` equal stretches: edges, mean over time, lowest and highest level."""
    coarse = np.linspace(edges[0], edges[-1], num_stretches + 1)
    fine = np.unique(np.concatenate([edges, coarse]))
    middles = (fine[1:] + fine[:-1]) / 2
    levels = levels[np.searchsorted(edges, middles) - 1]
    places = np.clip(np.searchsorted(coarse, middles) - 1, 0, num_stretches - 1)
    is_known = np.isfinite(levels)
    levels, places, widths = levels[is_known], places[is_known], np.diff(fine)[is_known]
    low, high = np.full(num_stretches, np.inf), np.full(num_stretches, -np.inf)
    np.minimum.at(low, places, levels)
    np.maximum.at(high, places, levels)
    time = np.bincount(places, widths, num_stretches)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(places, levels * widths, num_stretches) / time
    is_empty = time == 0
    low[is_empty] = high[is_empty] = np.nan
    return coarse, mean, low, high


def _known(values: Floats) -> tuple[float | None, ...]:
    return tuple(None if np.isnan(value) else value for value in _rounded(values))


def _rounded(values: Floats) -> Iterator[float]:
    """Six digits say more than a batch can know, and keep the answer short."""
    return (float(f"{value:.6g}") for value in values)
