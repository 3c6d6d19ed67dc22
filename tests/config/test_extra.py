import pytest

from batchgen.config.extra import ELSEWHERE, engine_args
from batchgen.config.fingerprint import FREE_MODEL_KEYS
from batchgen.config.models import ModelConfig


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        (
            {"gpu_memory_utilisation": 0.5},
            "gpu_memory_utilisation: vLLM has no such engine argument; did you mean"
            " 'gpu_memory_utilization'?",
        ),
        ({"max_num_seqs": 3}, "max_num_seqs: is set by batchgen; write model.max_num_seqs"),
        ({"tokenizer": "x"}, "tokenizer: is set by batchgen; write model.tokenizer"),
        ({"seed": "x"}, "seed: must be a whole number, is 'x'"),
        ({"enforce_eager": 1}, "enforce_eager: must be true or false, is 1"),
        ({"gpu_memory_utilization": True}, "gpu_memory_utilization: must be a number, is true"),
        (
            {"dtype": "floot16"},
            "dtype: must be one of 'auto', 'half', 'float16', 'bfloat16', 'float', 'float32', is"
            " 'floot16'; did you mean 'float16'?",
        ),
    ],
)
def test_vllm_arguments_are_checked_without_vllm(section_problems, extra, problem):
    assert section_problems(model={"name": "x", "extra": extra}) == [f"model.extra.{problem}"]


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({"clok": "real"}, "clok: no such key; did you mean 'clock'?"),
        ({"step_s": -1}, "step_s: must be at least 0, is -1"),
        (
            {"script": {"a:1": {"falt": "crash"}}},
            "script.a:1.falt: no such key; did you mean 'fault'?",
        ),
        (
            {"faults": {"die_on_start": "sometimes"}},
            "faults.die_on_start: must be a whole number or 'always', is 'sometimes'",
        ),
        (
            {"faults": {"die_after_rows": [1, -1]}},
            "faults.die_after_rows.1: must be at least 0, is -1",
        ),
        ({"script": 3}, "script: must be text or a mapping, is 3"),
    ],
)
def test_options_of_the_simulated_engine_are_checked(section_problems, extra, problem):
    found = section_problems(model={"engine": "simulated", "extra": extra})
    assert found == [f"model.extra.{problem}"]


def test_a_job_for_vllm_is_rehearsed_as_it_is(load):
    extra = {"gpu_memory_utilization": 0.9, "step_s": 0.5}
    job = load(model={"engine": "simulated", "extra": extra})
    assert job.model.simulated().step_s == 0.5


def test_arguments_of_vllm_are_checked_in_a_rehearsal_too(section_problems):
    extra = {"gpu_memory_utilization": True}
    assert section_problems(model={"engine": "simulated", "extra": extra}) == [
        "model.extra.gpu_memory_utilization: must be a number, is true"
    ]


def test_ordinary_vllm_arguments_pass(load):
    extra = {
        "gpu_memory_utilization": 0.9,
        "enforce_eager": True,
        "dtype": "float32",
        "kv_cache_memory_bytes": 2**30,
        "block_size": 32,
        "compilation_config": {"mode": 0},
        "tensor_parallel_size": 2,
        "quantization": None,
        "cpu_offload_gb": 4,
    }
    assert load(model={"name": "x", "extra": extra}).model.extra == extra


def test_keys_that_batchgen_sets_exist_in_vllm():
    assert set(ELSEWHERE) <= set(engine_args())


def test_free_keys_exist():
    assert set(FREE_MODEL_KEYS) <= set(engine_args()) | set(ModelConfig.model_fields)
