"""Which points a sweep measures, how often, and when it has seen enough."""

import random

import pytest

from batchgen.bench.latency_limit import parse_limit
from batchgen.bench.recommendation import recommend
from batchgen.bench.sweep import Sweep, SweepSettings, between, doublings
from batchgen.bench.sweep_rows import SweepRows
from batchgen.config.simulated import SimulatedOptions
from batchgen.config.stop_early import StopEarlyConfig
from batchgen.engine.clock import SimulatedClock
from batchgen.engine.simulated import SimulatedEngine
from batchgen.monitor.console import SilentConsole
from batchgen.records import Prompt, Sampling
from batchgen.run.stop import StopWatch

GREEDY = Sampling({"temperature": 0.0, "max_tokens": 64}, b"greedy")


class UnevenClock(SimulatedClock):
    """Each stretch of time takes up to `jitter` longer than it should, slowly changing."""

    def __init__(self, jitter):
        super().__init__()
        self._random = random.Random(5)
        self._jitter = jitter
        self._until, self._factor = 0.0, 1.0

    def sleep(self, seconds):
        if self.now() >= self._until:
            self._until = self.now() + 3.0
            self._factor = 1 + self._jitter * self._random.random()
        super().sleep(seconds * self._factor)


def prompts(number, num_tokens=20):
    return [
        Prompt("s", row, 0, [row, *range(num_tokens - 1)], f"row {row}", GREEDY, None)
        for row in range(number)
    ]


def sweep_of(*, slots=64, repeats=3, budget_s=1e9, limits=(), jitter=0.0, rows=None, **options):
    costs = {"step_s": 0.02, "decode_token_s": 0.002, "prefill_token_s": 0.0}
    clock = UnevenClock(jitter)
    engine = SimulatedEngine(
        SimulatedOptions(**{**costs, **options}),
        max_model_len=4096,
        max_num_seqs=slots,
        clock=clock,
    )
    return Sweep(
        engine,
        SweepRows(rows or prompts(4 * slots), order="longest_first", dedupe=True),
        SweepSettings(slots, repeats, budget_s, tuple(limits)),
        stop=StopWatch(clock),
        rules=StopEarlyConfig(),
        console=SilentConsole(),
    )


def swept(**settings):
    sweep = sweep_of(**settings)
    sweep.run()
    return sweep


def numbers(sweep):
    return [point.num_running for point in sweep.points()]


def test_the_slots_end_the_climb_also_where_they_are_no_power_of_two():
    assert list(doublings(48)) == [1, 2, 4, 8, 16, 32, 48]
    assert list(doublings(1)) == [1]


def test_while_throughput_grows_the_climb_goes_on_to_the_slots():
    sweep = swept(slots=48)
    assert {1, 2, 4, 8, 16, 32, 48} <= set(numbers(sweep))
    assert sweep.flat_from is None


def test_two_points_without_gain_end_the_climb():
    sweep = swept(step_s=0.001, decode_token_s=0.02)
    assert max(numbers(sweep)) < 64
    assert sweep.flat_from is not None


def test_a_gain_inside_the_noise_is_none():
    settings = {"step_s": 0.005, "decode_token_s": 0.02, "slots": 128}
    calm, uneven = swept(**settings), swept(**settings, jitter=0.3)
    assert uneven.noise > calm.noise
    assert uneven.flat_from < calm.flat_from


def test_without_noise_a_percent_still_counts_as_none():
    assert swept(slots=4).noise == 0.01


def test_the_knee_of_the_cost_law_is_found():
    found = recommend(swept().points())
    assert 8 <= found.knee <= 12


def test_points_are_refined_beside_those_with_a_name():
    assert {6, 12} & set(numbers(swept()))


def test_neighbors_that_are_close_need_nothing_in_between():
    points = [p for p in swept(slots=16).points() if p.num_running in (12, 16)]
    assert between(points, ()) == []


def test_what_the_recommendation_hangs_on_is_repeated():
    sweep = swept(repeats=3)
    found = recommend(sweep.points())
    repeats = {point.num_running: point.num_repeats for point in sweep.points()}
    assert (repeats[found.best], repeats[found.knee]) == (3, 3)
    assert repeats[1] == 1


def test_a_noisy_machine_is_asked_twice_as_often():
    sweep = swept(slots=16, repeats=2, jitter=0.5)
    best = recommend(sweep.points()).best
    repeats = {point.num_running: point.num_repeats for point in sweep.points()}
    assert sweep.noise > 0.03
    assert repeats[best] == 4


def test_trials_last_some_seconds_where_there_are_rows_enough():
    costs = {"step_s": 0.001, "decode_token_s": 0.0}
    sweep = swept(slots=8, rows=prompts(4000), **costs)
    sizes = {point.num_running: point.num_rows for point in sweep.points()}
    assert sizes[1] == 8
    assert sizes[8] > 500


def test_repeats_of_contenders_are_interleaved():
    sweep = sweep_of()
    for number in (4, 8):
        sweep.measure(number)
    sweep.repeat((4, 8))
    lines = sweep._console.lines
    assert [line.split()[0] for line in lines] == ["4", "8"] * 3


def test_the_limit_of_latency_is_closed_in_on():
    limits = [parse_limit("p50=1.5s")]
    sweep = swept(limits=limits)
    found = recommend(sweep.points(), limits)
    above = min(n for n in numbers(sweep) if n > found.under_latency)
    assert above / found.under_latency <= 1.5


def test_what_does_not_fit_into_the_budget_is_left_out_and_named():
    sweep = swept(budget_s=60)
    spent_s = sweep._engine.clock.now()
    assert sweep.left_out
    assert spent_s <= 60


def test_the_first_point_is_measured_in_any_case():
    sweep = swept(budget_s=0)
    assert numbers(sweep) == [1]
    assert 2 in sweep.left_out


def test_a_full_kv_cache_is_marked_and_gains_nothing():
    sweep = swept(kv_cache_tokens=1000)
    full = [point.num_running for point in sweep.points() if point.kv_limited]
    assert full
    assert max(numbers(sweep)) == 64 or sweep.flat_from is not None
    assert recommend(sweep.points()).best <= 2 * min(full)


def test_one_engine_does_all_of_it():
    sweep = sweep_of(start_s=5.0)
    sweep.run()
    assert sweep._engine.info.max_num_seqs == 64


def test_rows_per_s_is_in_rows_of_the_mean_length():
    sweep = swept()
    per_row = {point.output_tokens_per_s / point.rows_per_s for point in sweep.points()}
    assert max(per_row) == pytest.approx(min(per_row))


@pytest.mark.cpu
def test_a_sweep_on_vllm(tiny_vllm):
    sampling = Sampling({"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}, b"twelve")
    rows = [Prompt("s", i, 0, [7 + i, *range(10, 60)], "", sampling, None) for i in range(12)]
    sweep = Sweep(
        tiny_vllm,
        SweepRows(rows, order="longest_first", dedupe=True),
        SweepSettings(most_running=8, repeats=2, budget_s=120),
        stop=StopWatch(tiny_vllm.clock),
        rules=StopEarlyConfig(),
        console=SilentConsole(),
    )
    sweep.run()
    points = sweep.points()
    assert {1, 2, 4} <= {point.num_running for point in points}  # two flat points end the climb
    assert {point.cached_share for point in points} == {0.0}
    assert all(point.latency_s_p95 and point.ttft_s_p95 for point in points)
    assert all(0 < point.kv_cache_usage_max < 1 for point in points if point.num_running > 1)
    assert recommend(points).num_running in {point.num_running for point in points}
