"""What fits into a device's memory: weights, working memory, and sequences in whole blocks."""

from dataclasses import replace

import pytest
from capacity import model_configs as models

from batchgen.capacity.fit import (
    EngineLimits,
    Sequences,
    devices_needed,
    fit_memory,
    gpu_limits,
    workspace_bytes,
)
from batchgen.capacity.geometry import read_geometry

PLAIN = EngineLimits(block_tokens=1, max_num_seqs=0, max_num_batched_tokens=0, memory_share=0.9)
"""No memory for activations: 1.5 GB of workspace."""
GIB = 2**30


def geometry(config):
    return read_geometry(config, name="model")


def fit(config, memory_bytes, *, prompt, output=0, limits=PLAIN, max_model_len=None):
    sequences = Sequences([prompt], [output])
    return fit_memory(
        geometry(config), memory_bytes, limits, sequences, max_model_len=max_model_len
    )


@pytest.mark.parametrize(
    ("config", "memory_bytes", "context", "number"),
    [
        (models.OPT_13B, 40e9, 640, 16),
        (models.OPT_13B, 80e9, 2000, 27),
        (models.LLAMA_31_8B, 80e9, 1500, 276),
        (models.LLAMA_31_8B, 141e9, 1500, 556),
        (models.SMOLLM2_135M, 80e9, 1500, 2032),
    ],
)
def test_as_many_sequences_fit_as_the_arithmetic_says(config, memory_bytes, context, number):
    """(0.9 of the memory - weights - 1.5 GB) ÷ (context x bytes of a token)."""
    found = fit(config, int(memory_bytes), prompt=context)
    assert found.max_concurrent_sequences == number


def test_a_sequence_is_counted_with_its_whole_completion():
    short = fit(models.LLAMA_31_8B, 80 * 10**9, prompt=1000)
    long = fit(models.LLAMA_31_8B, 80 * 10**9, prompt=1000, output=1000)
    assert long.kv_bytes_per_sequence == 2 * short.kv_bytes_per_sequence
    assert long.max_concurrent_sequences == short.max_concurrent_sequences // 2


def test_a_sequence_takes_whole_blocks():
    blocks = replace(PLAIN, block_tokens=128)
    found = fit(models.LLAMA_31_8B, 80 * 10**9, prompt=129, limits=blocks)
    assert found.kv_bytes_per_sequence == 256 * 131072


def test_different_lengths_are_averaged():
    found = fit_memory(
        geometry(models.LLAMA_31_8B),
        80 * 10**9,
        PLAIN,
        Sequences([100, 300], [0, 0]),
        max_model_len=None,
    )
    assert found.kv_bytes_per_sequence == 200 * 131072


def test_weights_that_do_not_fit_leave_room_for_nothing():
    found = fit(models.LLAMA_2_70B, 80 * 10**9, prompt=100, max_model_len=4096)
    assert found.kv_cache_bytes == 0
    assert found.max_concurrent_sequences == found.max_concurrent_at_max_len == 0


def test_a_fixed_cache_is_taken_as_it_is():
    fixed = replace(PLAIN, kv_cache_bytes=GIB)
    found = fit(models.LLAMA_31_8B, None, prompt=1024, limits=fixed, max_model_len=4096)
    assert found.usable_bytes is None
    assert found.kv_cache_tokens == 8192
    assert found.max_concurrent_sequences == 8
    assert found.max_concurrent_at_max_len == 2


def test_tensor_parallel_devices_share_weights_and_kv_heads():
    found = fit(
        models.LLAMA_2_70B, 80 * 10**9, prompt=100, limits=replace(PLAIN, tensor_parallel=4)
    )
    assert found.weight_bytes == pytest.approx(137.95e9 / 4, rel=0.001)
    assert found.kv_bytes_per_sequence == 100 * 327680 / 4


def test_pipeline_parallel_devices_share_layers():
    found = fit(
        models.LLAMA_2_70B, 80 * 10**9, prompt=100, limits=replace(PLAIN, pipeline_parallel=2)
    )
    assert found.kv_bytes_per_sequence == 100 * 327680 / 2


def test_without_sequences_nothing_is_said_about_them():
    found = fit_memory(
        geometry(models.LLAMA_31_8B), 80 * 10**9, PLAIN, Sequences([], []), max_model_len=None
    )
    assert found.max_concurrent_sequences is None
    assert found.kv_cache_bytes > 0


def test_a_model_without_kv_cache_is_limited_by_its_state():
    found = fit(models.FALCON_MAMBA_7B, 24 * 10**9, prompt=5000)
    assert found.kv_cache_tokens is None
    assert found.max_concurrent_sequences == found.kv_cache_bytes // found.kv_bytes_per_sequence


def test_a_full_step_needs_memory_of_its_own():
    small = workspace_bytes(geometry(models.LLAMA_31_8B), PLAIN)
    large = workspace_bytes(
        geometry(models.LLAMA_31_8B), replace(PLAIN, max_num_batched_tokens=8192)
    )
    assert small == 1.5e9
    assert large - small == 8192 * (2 * 4096 + 3 * 14336) * 2


@pytest.mark.parametrize(
    ("config", "gigabytes", "number"),
    [
        (models.LLAMA_31_8B, 80, 1),
        (models.LLAMA_2_70B, 80, 2),
        (models.LLAMA_2_70B, 141, 2),
        (models.DEEPSEEK_V3, 141, 8),
        (models.LLAMA_2_70B, 1, None),
    ],
)
def test_the_fewest_devices_are_a_power_of_two(config, gigabytes, number):
    limits = EngineLimits(16, 256, 8192)
    assert devices_needed(geometry(config), gigabytes * 10**9, limits, 4096) == number


@pytest.mark.parametrize(
    ("name", "gigabytes", "slots", "tokens"),
    [("H100", 80, 2048, 32768), ("A100", 80, 512, 16384), ("L4", 24, 512, 16384)],
)
def test_limits_are_vllm_s_for_throughput_on_such_a_device(name, gigabytes, slots, tokens):
    found = gpu_limits(
        {},
        max_num_seqs=None,
        max_model_len=4096,
        memory_bytes=gigabytes * 10**9,
        device_name=name,
    )
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (slots, tokens)
    assert (found.block_tokens, found.memory_share) == (16, 0.92)


def test_what_the_job_says_counts_before_the_defaults():
    extra = {
        "performance_mode": "balanced",
        "gpu_memory_utilization": 0.5,
        "block_size": 32,
        "tensor_parallel_size": 2,
        "kv_cache_memory_bytes": GIB,
        "enable_prefix_caching": False,
    }
    found = gpu_limits(extra, max_num_seqs=8, max_model_len=100, memory_bytes=80 * 10**9)
    assert found == EngineLimits(
        block_tokens=32,
        max_num_seqs=8,
        max_num_batched_tokens=800,
        memory_share=0.5,
        kv_cache_bytes=GIB,
        tensor_parallel=2,
        prefix_caching=False,
    )
