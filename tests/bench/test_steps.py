"""Decode steps are timed beside a known number of sequences, and match the engine's cost model."""

import doctest

import pytest

from batchgen.bench import steps
from batchgen.bench.step_law import fit_step_law
from batchgen.bench.steps import measure_steps, step_point, step_sizes, step_tokens
from batchgen.bench.trials import run_generate
from batchgen.bench.workload import BenchSession, Workload
from batchgen.config.models import JobConfig
from batchgen.records import Prompt, Sampling

STEP_S, DECODE_TOKEN_S = 0.02, 0.002


@pytest.fixture
def start(write_jsonl):
    """A session on the simulated engine, with options of its cost model."""
    shard = write_jsonl("docs.jsonl", [{"text": f"number {i} " + "w " * i} for i in range(40)])

    def session(**extra):
        model = {
            "engine": "simulated",
            "max_model_len": 100,
            "max_num_seqs": 32,
            "extra": {
                "clock": "simulated",
                "step_s": STEP_S,
                "decode_token_s": DECODE_TOKEN_S,
                **extra,
            },
        }
        return BenchSession(
            JobConfig.model_validate(
                {
                    "input": {"paths": [str(shard)]},
                    "prompt": {"template": "{{ text }}"},
                    "model": model,
                    "sampling": {"temperature": 0},
                    "output": {"path": str(shard.parent / "out")},
                }
            ),
            num_rows=32,
        )

    return session


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(steps).failed == 0


def test_the_law_of_the_cost_model_is_recovered(start):
    with start(prefill_token_s=0.005) as session:
        measured = measure_steps(session.engine, session.workload, step_sizes([4, 32]), 24)
    law = fit_step_law([point for point, _ in measured])
    assert [point.num_running for point, _ in measured] == [1, 2, 4, 8, 16, 32]
    assert law.a_s == pytest.approx(STEP_S)
    assert law.b_s == pytest.approx(DECODE_TOKEN_S)
    assert law.max_error == pytest.approx(0, abs=1e-6)


def test_sequences_that_cannot_decode_side_by_side_make_no_point(start):
    with start(kv_cache_tokens=300) as session:
        measured = measure_steps(session.engine, session.workload, [1, 2, 32], 24)
    assert [point.num_running for point, _ in measured] == [1, 2]


def test_completions_of_one_prompt_are_sequences(start):
    with start() as session:
        prompt = session.workload.prompts[0]
        values = {**prompt.sampling.values, "temperature": 0.8, "n": 3}
        sampling = type(prompt.sampling)(values, b"three")
        work = session.workload.first(2)
        work = type(work)(tuple(p._replace(sampling=sampling) for p in work.prompts), 2, 0)
        point = step_point(run_generate(session.engine, work.pinned([24, 24]), 2))
    assert point.num_running == 6
    assert point.step_s == pytest.approx(STEP_S + 6 * DECODE_TOKEN_S)


@pytest.mark.parametrize(("max_model_len", "expected"), [(1000, 24), (60, 20), (47, None)])
def test_rows_get_as_many_tokens_as_all_have_room_for(start, max_model_len, expected):
    with start() as session:
        longest = max(len(prompt.token_ids) for prompt in session.workload.prompts)
        assert longest == 40
        assert step_tokens(session.workload, max_model_len) == expected


@pytest.mark.cpu
def test_steps_of_vllm_are_timed_beside_each_other(tiny_vllm):
    sampling = Sampling({"temperature": 0.0, "max_tokens": 4}, b"greedy")
    prompts = tuple(
        Prompt("s", i, 0, [7 + i, *range(10, 40)], "", sampling, None) for i in range(8)
    )
    measured = measure_steps(tiny_vllm, Workload(prompts, 8, 0), [1, 2, 8], 24)
    assert [point.num_running for point, _ in measured] == [1, 2, 8]
    assert all(point.step_s > 0 for point, _ in measured)
    assert {trial.num_output_tokens for _, trial in measured} == {24, 48, 192}
