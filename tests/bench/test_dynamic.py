"""Batches that close by size or time-out, and the same arrivals fed continuously."""

import doctest

import pytest

from batchgen.bench import dynamic
from batchgen.bench.dynamic import arrival_moments, run_continuous_arriving, run_dynamic
from batchgen.bench.workload import BenchSession, Workload
from batchgen.config.models import JobConfig
from batchgen.records import Prompt, Sampling

STEP_S = 1.0
"""A call of the simulated engine's `step` covers one second at most: here that is one step."""
TOKENS = 4


@pytest.fixture
def session(write_jsonl):
    shard = write_jsonl("docs.jsonl", [{"text": f"document number {i}"} for i in range(40)])
    job = JobConfig.model_validate(
        {
            "input": {"paths": [str(shard)]},
            "prompt": {"template": "{{ text }}"},
            "model": {
                "engine": "simulated",
                "max_num_seqs": 8,
                "extra": {
                    "clock": "simulated",
                    "step_s": STEP_S,
                    "decode_token_s": 0,
                    "prefill_token_s": 0,
                },
            },
            "sampling": {"temperature": 0, "max_tokens": 64},
            "output": {"path": str(shard.parent / "out")},
        }
    )
    with BenchSession(job, num_rows=10) as session:
        yield session


@pytest.fixture
def rows(session):
    """So many rows of `TOKENS` output tokens each."""

    def take(number):
        return session.workload.first(number).pinned([TOKENS] * number)

    return take


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(dynamic).failed == 0


def test_the_same_seed_gives_the_same_arrivals():
    moments = [arrival_moments(50, 2.0, seed=seed) for seed in (7, 7, 8)]
    assert moments[0] == moments[1] != moments[2]
    assert moments[0] == sorted(moments[0])
    assert moments[0][0] == 0


def test_exponential_gaps_have_the_rate_as_their_mean():
    assert arrival_moments(5001, 2.0)[-1] == pytest.approx(2500, rel=0.05)


def test_a_full_batch_starts_at_once(session, rows):
    trial, arrivals = run_dynamic(session.engine, rows(4), 2, [0, 1, 1, 1], max_wait_s=100)
    assert (arrivals.num_full, arrivals.num_timed_out) == (2, 0)
    assert trial.wall_s == pytest.approx(1 + 2 * TOKENS)


def test_a_batch_that_does_not_fill_closes_by_its_time_out(session, rows):
    trial, arrivals = run_dynamic(session.engine, rows(2), 4, [0, 1], max_wait_s=3)
    assert (arrivals.num_full, arrivals.num_timed_out) == (0, 1)
    assert trial.wall_s == pytest.approx(3 + TOKENS)


def test_a_latency_begins_at_the_arrival_and_ends_with_the_call(session, rows):
    trial, _ = run_dynamic(session.engine, rows(2), 4, [0, 1], max_wait_s=3)
    assert [row.latency_s for row in trial.rows] == pytest.approx([7, 6])
    assert [row.ttft_s for row in trial.rows] == pytest.approx([4, 3])


def test_rows_that_arrive_during_a_call_wait_for_its_end(session, rows):
    trial, arrivals = run_dynamic(session.engine, rows(3), 2, [0, 0, 1], max_wait_s=0.5)
    assert (arrivals.num_full, arrivals.num_timed_out) == (1, 1)
    assert trial.rows[2].latency_s == pytest.approx(2 * TOKENS - 1)


def test_continuous_takes_a_row_in_at_the_next_step(session, rows):
    trial = run_continuous_arriving(session.engine, rows(2), 4, [0, 1])
    assert [row.latency_s for row in trial.rows] == pytest.approx([4, 4])
    assert trial.wall_s == pytest.approx(1 + TOKENS)


def test_continuous_never_has_more_rows_in_flight_than_its_window(session, rows):
    trial = run_continuous_arriving(session.engine, rows(4), 2, [0, 0, 0, 0])
    assert [row.latency_s for row in trial.rows] == pytest.approx([4, 4, 8, 8])


def test_waiting_for_rows_is_not_taken_for_work(session, rows):
    trial = run_continuous_arriving(session.engine, rows(2), 4, [0, 100])
    assert trial.wall_s == pytest.approx(100 + TOKENS)
    assert trial.num_running_mean == pytest.approx(1)
    assert trial.drain_s == pytest.approx(2 * TOKENS)


@pytest.mark.cpu
def test_arrivals_on_vllm_keep_their_moments(tiny_vllm):
    sampling = Sampling({"temperature": 0.0, "max_tokens": 4}, b"greedy")
    prompts = tuple(Prompt("s", i, 0, [7 + i, 8, 9], "", sampling, None) for i in range(3))
    work, moments = Workload(prompts, 3, 0).pinned([4, 4, 4]), [0.0, 0.3, 0.6]
    batched, arrivals = run_dynamic(tiny_vllm, work, 2, moments, max_wait_s=0.9)
    continuous = run_continuous_arriving(tiny_vllm, work, 2, moments)
    assert (arrivals.num_full, arrivals.num_timed_out) == (1, 1)
    assert batched.rows[0].latency_s > 0.3  # it waited for the second row
    assert batched.rows[2].latency_s > 0.9
    assert continuous.wall_s > 0.6
    assert [row.num_output_tokens for row in continuous.rows] == [4, 4, 4]
