"""A plan is for a named device, for a size of memory, or for what this machine has."""

import pytest

from batchgen.capacity.geometry import read_geometry
from batchgen.config.models import ModelConfig
from batchgen.errors import UsageError
from batchgen.run.target import choose_setting, choose_target, target_rates

CONFIG = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
GEOMETRY = read_geometry(CONFIG, name="model")


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """A machine on which nvidia-smi answers with these lines."""

    def make(*lines):
        tool = tmp_path / "nvidia-smi"
        tool.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return make


def setting(target, *, extra=None, max_num_seqs=None):
    model = ModelConfig(name="model", extra=extra or {}, max_num_seqs=max_num_seqs)
    return choose_setting(model, target, CONFIG, max_model_len=2048)


def test_a_named_device_brings_its_memory_and_rates():
    target, notes = choose_target("h100", None)
    assert (target.name, target.kind, target.memory_bytes) == ("H100", "gpu", 80 * 10**9)
    rates, _ = target_rates(target, setting(target), GEOMETRY, is_asked=True)
    assert rates.matmul_flops_per_s == 989e12
    assert not notes


def test_given_memory_replaces_that_of_the_device():
    target, _ = choose_target("H100", 94 * 10**9)
    assert target.memory_bytes == 94 * 10**9


def test_memory_alone_says_nothing_about_time():
    target, _ = choose_target(None, 40 * 10**9)
    assert (target.name, target.kind) == ("40 GB", "memory")
    assert target_rates(target, setting(target), GEOMETRY, is_asked=False) == (None, [])


def test_an_unknown_device_suggests_the_nearest():
    with pytest.raises(UsageError, match=r"'H1000' is not known; did you mean 'H100'\?.*--memory"):
        choose_target("H1000", None)


def test_the_gpu_of_this_machine_is_the_default(gpus):
    gpus("NVIDIA H100 80GB HBM3, 81559 MiB")
    target, notes = choose_target(None, None)
    assert (target.name, target.is_here) == ("H100", True)
    assert target.memory_bytes == 81559 * 2**20
    assert not notes


@pytest.mark.parametrize(("name", "is_here"), [("H100", True), ("H200", False)])
def test_a_named_device_may_be_the_one_of_this_machine(gpus, name, is_here):
    gpus("NVIDIA H100 80GB HBM3, 81559 MiB")
    assert choose_target(name, None)[0].is_here is is_here


def test_a_gpu_that_is_not_in_the_table_is_said(gpus):
    gpus("Tesla T4, 15360 MiB")
    target, notes = choose_target(None, None)
    assert target.kind == "cpu"
    assert "'Tesla T4' is not in the table" in notes[0]


def test_without_a_gpu_it_is_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert choose_target(None, None)[0].kind == "cpu"


def test_several_devices_add_up():
    target, _ = choose_target("H100", None)
    two = setting(target, extra={"tensor_parallel_size": 2})
    rates, _ = target_rates(target, two, GEOMETRY, is_asked=True)
    assert rates.memory_bytes_per_s == 2 * 3.35e12


def test_a_cpu_runs_with_the_settings_that_a_run_would_choose(monkeypatch):
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    found = setting(choose_target("cpu", None)[0], max_num_seqs=4)
    assert found.limits.block_tokens == 128
    assert found.limits.max_num_seqs == 4
    assert found.limits.kv_cache_bytes >= 256 * 2**20
    assert found.dtype in ("float32", "bfloat16")


def test_the_cache_of_a_cpu_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "3")
    assert setting(choose_target("cpu", None)[0]).limits.kv_cache_bytes == 3 * 2**30


def test_memory_given_for_a_cpu_leaves_the_cache_open():
    target, _ = choose_target("cpu", 8 * 10**9)
    found = setting(target)
    assert found.limits.kv_cache_bytes is None
    assert found.limits.memory_share == 1.0


def test_settings_of_the_job_count(monkeypatch):
    extra = {"block_size": 32, "kv_cache_memory_bytes": 2**30, "dtype": "float32"}
    found = setting(choose_target("cpu", None)[0], extra=extra)
    assert found.limits.block_tokens == 32
    assert found.limits.kv_cache_bytes == 2**30
    assert found.dtype == "float32"
