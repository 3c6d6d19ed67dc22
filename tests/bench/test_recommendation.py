"""Which point is recommended, and what an autoscaler is told."""

import doctest
from importlib import import_module

import pyarrow as pa
import pytest

from batchgen.bench.latency_limit import LatencyLimit, parse_limit
from batchgen.bench.recommendation import best_point, knee_point, recommend
from batchgen.bench.sweep_points import SweepPoint, points_schema
from batchgen.errors import UsageError


def point(num_running, tokens_per_s, latency_s=1.0, **values):
    fields = dict.fromkeys(SweepPoint.__dataclass_fields__)
    known = {
        "num_running": num_running,
        "num_repeats": 1,
        "num_rows": 4 * num_running,
        "num_failed": 0,
        "output_tokens_per_s": tokens_per_s,
        "prompt_tokens_per_s": tokens_per_s,
        "rows_per_s": tokens_per_s / 10,
        "latency_s_p50": latency_s,
        "latency_s_p95": None if latency_s is None else 2 * latency_s,
        "engine_start": 1,
    }
    return SweepPoint(**{**fields, **known, **values})


def law(numbers, a_s=0.02, b_s=0.002):
    """Points of an engine whose steps take a + b·n seconds, with rows of 100 tokens."""
    return [point(n, n / (a_s + b_s * n), 100 * (a_s + b_s * n)) for n in numbers]


@pytest.mark.parametrize(
    "module",
    ["latency_limit", "recommendation", "steady", "sweep", "sweep_points", "sweep_rows"],
)
def test_examples_in_docstrings_hold(module):
    results = doctest.testmod(import_module(f"batchgen.bench.{module}"))
    assert results.attempted
    assert not results.failed


def test_the_best_has_the_most_throughput():
    assert best_point([point(1, 10), point(2, 20), point(4, 15)]).num_running == 2


def test_of_equal_throughputs_the_smallest_concurrency_counts():
    assert (
        best_point([point(1, 10), point(8, 99.5), point(16, 100), point(32, 99)]).num_running == 8
    )


def test_the_knee_is_where_sequences_cost_as_much_as_what_they_share():
    assert knee_point(law([1, 2, 4, 8, 10, 12, 16, 32, 64])).num_running == 10


def test_the_knee_needs_no_latencies():
    assert knee_point([point(1, 10, None), point(2, 19, None), point(8, 20)]).num_running == 2


def test_without_a_limit_the_best_is_recommended():
    found = recommend(law([1, 4, 16, 64]))
    assert (found.num_running, found.best, found.basis) == (64, 64, "best")
    assert found.under_latency is None


def test_under_a_limit_the_best_that_keeps_it_is_recommended():
    points = law([1, 4, 16, 64])
    found = recommend(points, [LatencyLimit("latency_s_p95", 11.0, "p95=11s")])
    assert (found.num_running, found.under_latency, found.best) == (16, 16, 64)
    assert found.basis == "under_latency"
    assert found.autoscaler.target_num_running == 16


def test_all_limits_have_to_be_kept():
    points = [point(1, 10, 1.0, ttft_s_p50=0.1), point(2, 20, 1.5, ttft_s_p50=0.5)]
    limits = [parse_limit("p50=2s"), parse_limit("ttft_p50=200ms")]
    assert recommend(points, limits).num_running == 1


def test_a_limit_that_nothing_keeps_recommends_nothing_and_tells_the_lowest_value():
    found = recommend(law([1, 4, 16]), [parse_limit("p95=1s")])
    assert found.num_running is None
    assert found.autoscaler is None
    assert found.limits[0].lowest_s == pytest.approx(4.4)
    assert found.limits[0].lowest_num_running == 1


def test_a_limit_of_times_that_the_engine_does_not_tell_is_not_kept():
    found = recommend([point(1, 10, None)], [parse_limit("p95=1s")])
    assert found.num_running is None
    assert found.limits[0].lowest_s is None


def test_the_autoscaler_goes_down_when_replicas_are_half_empty():
    scaler = recommend(law([1, 4, 16])).autoscaler
    assert (scaler.target_num_running, scaler.scale_down_below) == (16, 8)
    assert scaler.replicas is None


def test_replicas_leave_room_for_bursts():
    found = recommend([point(8, 100)], arrival_rate=20)
    assert found.autoscaler.replicas == 3


@pytest.mark.parametrize("text", ["2s", "p90=2s", "p95", "p95=", "p95=2", "p95=0s", "e2e_p95=2s"])
def test_what_is_no_limit_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="p95=2s, ttft_p95=500ms"):
        parse_limit(text)


def test_the_table_has_a_column_for_each_field_of_a_point():
    schema = points_schema()
    assert schema.names == list(SweepPoint.__dataclass_fields__)
    assert schema.field("num_running").type == pa.int64()
    assert schema.field("kv_limited").type == pa.bool_()
    assert schema.field("latency_s_p95").type == pa.float64()
