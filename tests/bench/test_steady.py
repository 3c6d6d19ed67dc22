"""The middle of a trial: neither its start nor its end is in the numbers."""

import pytest

from batchgen.bench.steady import measure_steady, rows_needed
from batchgen.config.simulated import SimulatedOptions
from batchgen.config.stop_early import StopEarlyConfig
from batchgen.engine.clock import RealClock, SimulatedClock
from batchgen.engine.simulated import SimulatedEngine
from batchgen.errors import DataError
from batchgen.records import Prompt, Sampling
from batchgen.run.stop import StopRun, StopWatch

STEP_S, TOKEN_S = 0.02, 0.001


def engine(**options):
    costs = {"step_s": STEP_S, "decode_token_s": TOKEN_S, "prefill_token_s": 0.0}
    return SimulatedEngine(
        SimulatedOptions(**{**costs, **options}),
        max_model_len=4096,
        max_num_seqs=64,
        clock=SimulatedClock(),
    )


def prompts(number, num_tokens=10, **sampling):
    values = Sampling({"temperature": 0.0, "max_tokens": 64, **sampling}, repr(sampling).encode())
    return [
        Prompt("s", row, 0, [row, *range(num_tokens - 1)], f"row {row}", values, None)
        for row in range(number)
    ]


def measure(on, rows, num_running, rules=None):
    return measure_steady(on, rows, num_running, StopWatch(on.clock), rules)


@pytest.mark.parametrize("num_running", [1, 4, 16, 64])
def test_the_rate_is_that_of_an_engine_that_is_always_full(num_running):
    trial = measure(engine(), prompts(rows_needed(num_running)), num_running)
    law = num_running / (STEP_S + TOKEN_S * num_running)
    assert trial.output_tokens_per_s == pytest.approx(law, rel=0.02)


def test_a_whole_trial_is_slower_because_of_its_tail():
    trial = measure(engine(), prompts(64), 16)
    middle_rows_per_s = trial.output_tokens_per_s * 64 / sum(trial.lengths.values())
    assert trial.rows_per_s_in_all < 0.95 * middle_rows_per_s


def test_rows_that_all_end_together_count_whole_waves():
    on = engine(prefill_token_s=0.001)
    trial = measure(on, prompts(32, ignore_eos=True), 8)
    wave_s = 64 * (STEP_S + 8 * TOKEN_S) + 8 * 10 * 0.001
    assert trial.output_tokens_per_s == pytest.approx(8 * 64 / wave_s)


def test_latencies_are_those_of_rows_between_the_first_and_the_last():
    trial = measure(engine(), prompts(64), 16)
    assert (trial.middle.num_rows, trial.num_rows) == (32, 64)


def test_the_first_tokens_of_the_start_are_not_in_the_latencies():
    on = engine(prefill_token_s=0.001)
    trial = measure(on, prompts(64, num_tokens=200), 16)
    burst_s = 16 * 200 * 0.001
    assert trial.middle.ttft_s_p95 < burst_s


def test_lengths_are_those_of_all_rows():
    trial = measure(engine(), prompts(16, max_tokens=5, ignore_eos=True), 4)
    assert set(trial.lengths.values()) == {5}
    assert len(trial.lengths) == 16


def test_several_completions_of_a_row_count_with_their_mean_length():
    trial = measure(engine(), prompts(16, max_tokens=5, ignore_eos=True, n=3, temperature=1.0), 4)
    assert set(trial.lengths.values()) == {5}


def test_a_step_computes_prompts_and_outputs():
    trial = measure(engine(), prompts(32, max_tokens=5, ignore_eos=True), 8)
    assert trial.tokens_per_step == pytest.approx((10 + 5) * 8 / 5)


def test_a_repeat_costs_what_the_first_trial_did():
    on = engine(prefill_token_s=0.001, kv_block_tokens=4)
    first, second = (measure(on, prompts(32, num_tokens=64), 8) for _ in range(2))
    assert second.output_tokens_per_s == pytest.approx(first.output_tokens_per_s)


def test_failed_rows_are_counted():
    on = engine(script={"s:5": {"fault": "row_error"}})
    trial = measure(on, prompts(16), 4)
    assert (trial.num_failed, len(trial.lengths)) == (1, 15)


def test_rows_that_are_stopped_early_end_early():
    rules = StopEarlyConfig(pattern="river")
    stopped = measure(engine(), prompts(16, ignore_eos=True), 4, rules)
    assert max(stopped.lengths.values()) < 64


def test_a_clock_that_stands_still_is_said():
    on = engine(step_s=0.0, decode_token_s=0.0)
    with pytest.raises(DataError, match="stands still"):
        measure(on, prompts(16), 4)


def test_too_few_rows_for_a_middle_are_a_fault_of_the_caller():
    with pytest.raises(ValueError, match="too few"):
        measure(engine(), prompts(8), 4)


def test_a_request_to_stop_ends_the_trial():
    on, stop = engine(), StopWatch(RealClock())
    stop.request(StopRun("stopped by SIGINT", 130, "signal"))
    with pytest.raises(StopRun):
        measure_steady(on, prompts(16), 4, stop)
