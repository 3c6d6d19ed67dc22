"""Padded batches: what counts, what is padding, and the same model through transformers."""

import doctest
import os

import pytest

from batchgen.bench import static
from batchgen.bench.static_process import StaticProcess, padding_share, static_trial, why_not
from batchgen.bench.trials import run_generate
from batchgen.bench.workload import Workload
from batchgen.config.models import ModelConfig
from batchgen.errors import EngineError
from batchgen.records import Prompt, Sampling

GREEDY = Sampling({"temperature": 0.0, "max_tokens": 8}, b"greedy")
SETTINGS = {"dtype": "bfloat16", "tensor_parallel_size": 1}


def workload(*num_prompt_tokens, sampling=GREEDY):
    prompts = tuple(
        Prompt("s", i, 0, [10 + i, *range(20, 19 + n)], "", sampling, None)
        for i, n in enumerate(num_prompt_tokens)
    )
    return Workload(prompts, len(prompts), 0)


def call(*num_tokens, wall_s=11.0, ttft_s=1.0):
    return {
        "wall_s": wall_s,
        "ttft_s": ttft_s,
        "num_steps": max(num_tokens),
        "num_tokens": list(num_tokens),
        "texts": [f"text of {number}" for number in num_tokens],
    }


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(static).failed == 0


def test_padding_is_no_work():
    assert padding_share(workload(2, 4, 3, 3), 2) == pytest.approx(1 - 12 / 14)
    assert padding_share(workload(3, 3), 2) == 0


def test_only_tokens_of_the_row_itself_count():
    answer = {"wall_s": 22.0, "calls": [call(11, 1), call(6, 11)]}
    trial = static_trial(2, workload(2, 2, 2, 2), answer)
    assert trial.num_output_tokens == 29
    assert trial.output_tokens_per_s == pytest.approx(29 / 22)
    assert [row.num_output_tokens for row in trial.rows] == [11, 1, 6, 11]
    assert trial.rows[0].text == "text of 11"


def test_every_row_waits_for_the_longest_of_its_call():
    trial = static_trial(2, workload(2, 2), {"wall_s": 11.0, "calls": [call(11, 1)]})
    assert [row.latency_s for row in trial.rows] == [11.0, 11.0]
    assert [row.ttft_s for row in trial.rows] == [1.0, 1.0]
    assert trial.tpot_s_p50 == pytest.approx(1.0)


def test_a_row_that_has_ended_leaves_its_slot_empty():
    trial = static_trial(2, workload(2, 2), {"wall_s": 11.0, "calls": [call(11, 1)]})
    assert trial.drain_s == pytest.approx(10.0)
    assert trial.num_running_mean == pytest.approx(12 / 11)


@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        ({"engine": "simulated"}, {}, "simulated engine"),
        ({"extra": {"quantization": "fp8"}}, SETTINGS, "loads the weights"),
        ({}, {"dtype": "float8"}, "number format"),
        ({}, {**SETTINGS, "tensor_parallel_size": 2}, "several devices"),
    ],
)
def test_why_static_is_left_out(model, settings, words):
    assert words in why_not(ModelConfig(name="some/model", **model), settings)


def process(model, dtype="float32"):
    return StaticProcess(
        ModelConfig(name=str(model)),
        dtype=dtype,
        device="cpu",
        cpus=sorted(os.sched_getaffinity(0)),
        environment={**os.environ, "HF_HUB_OFFLINE": "1"},
        seed=0,
    )


@pytest.mark.cpu
def test_a_model_that_cannot_be_loaded_is_an_error_with_its_reason(tmp_path):
    trials = process(tmp_path / "nowhere").trials(
        workload(3), [1], is_pinned=True, max_model_len=64
    )
    with pytest.raises(EngineError, match=r"exit code 1: .*nowhere"):
        next(trials)


@pytest.mark.cpu
def test_the_same_weights_through_transformers(tiny_model_dir, tiny_vllm):
    lengths = [6, 3, 6, 2]
    work = workload(40, 3, 17, 60).pinned(lengths)
    dtype = tiny_vllm.info.settings["dtype"]
    static_trials = list(
        process(tiny_model_dir, dtype).trials(work, [4, 2], is_pinned=True, max_model_len=256)
    )
    vllm = run_generate(tiny_vllm, work, 1)
    for trial in static_trials:
        assert [row.num_output_tokens for row in trial.rows] == lengths
        same = [x.text == y.text for x, y in zip(trial.rows, vllm.rows, strict=True)]
        assert sum(same) >= 2  # a random model is often undecided between two tokens
    assert [trial.num_steps for trial in static_trials] == [6, 12]
