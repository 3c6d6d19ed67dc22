"""From what fits to hours and money; bounds stay below what was published."""

import pytest
from capacity import model_configs as models

from batchgen.capacity.devices import find_device
from batchgen.capacity.fit import EngineLimits, Sequences, fit_memory
from batchgen.capacity.geometry import read_geometry
from batchgen.capacity.plan import Efficiency, estimate, pace, published_efficiency
from batchgen.capacity.roofline import Work, at_least_s

H100 = find_device("H100")
LIMITS = EngineLimits(block_tokens=16, max_num_seqs=256, max_num_batched_tokens=8192)
HALF = Efficiency(0.5, 0.5, "half")


def work(num_rows, prompt, output):
    return Work(
        num_rows=num_rows,
        num_prompt_tokens=num_rows * prompt,
        num_cached_tokens=0,
        num_output_tokens=num_rows * output,
        num_running_mean=1.0,
    )


def paced(config, *, num_rows=10_000, prompt=1000, output=200, limits=LIMITS, device=H100):
    geometry = read_geometry(config, name="model")
    fit = fit_memory(
        geometry,
        device.memory_bytes,
        limits,
        Sequences([prompt], [output]),
        max_model_len=None,
    )
    rates = device.rates(geometry.matmul_dtype)
    return pace(geometry, rates, fit, limits, work(num_rows, prompt, output))


@pytest.mark.parametrize(
    ("config", "num_rows", "prompt", "number", "limited_by"),
    [
        (models.LLAMA_31_8B, 10_000, 1000, 256, "slots"),
        (models.LLAMA_31_8B, 10, 1000, 10, "rows"),
        (models.OPT_13B, 10_000, 1800, 27, "kv_cache"),
    ],
)
def test_the_scarcest_of_three_things_limits_a_step(config, num_rows, prompt, number, limited_by):
    found = paced(config, num_rows=num_rows, prompt=prompt, output=200)
    assert (found.num_running, found.limited_by) == (number, limited_by)


def test_the_critical_batch_of_an_h100_is_295():
    assert paced(models.LLAMA_31_8B).critical_batch == pytest.approx(295, abs=1)


def test_a_job_takes_at_least_its_roofline():
    found = paced(models.LLAMA_31_8B)
    assert found.decode_bound == "memory"
    assert found.decode_tokens_per_s == pytest.approx(found.num_running / found.decode_step_s)
    assert 0 < found.bound.prefill_s < found.bound.total_s


def test_what_does_not_fit_has_no_pace():
    assert paced(models.LLAMA_2_70B) is None


def test_an_estimate_is_the_bound_over_the_efficiency():
    found = estimate(1800.0, HALF, num_devices=4, price=2.5, deadline_s=None, start_s=0.0)
    assert (found.low_s, found.high_s) == (3600.0, 3600.0)
    assert found.device_hours_high == 4.0
    assert found.cost_high == 10.0
    assert found.replicas is None


def test_a_range_gives_ranges():
    found = estimate(
        360.0, Efficiency(0.1, 1.0, "any"), num_devices=1, price=1.0, deadline_s=None, start_s=0.0
    )
    assert (found.low_s, found.high_s) == (360.0, 3600.0)
    assert (found.cost_low, found.cost_high) == (0.1, 1.0)


@pytest.mark.parametrize(
    ("deadline_s", "start_s", "replicas"),
    [(3600.0, 0.0, 2), (7200.0, 0.0, 1), (900.0, 0.0, 8), (3600.0, 1800.0, 4), (60.0, 90.0, None)],
)
def test_replicas_are_enough_at_the_slower_end(deadline_s, start_s, replicas):
    found = estimate(
        3600.0, HALF, num_devices=1, price=None, deadline_s=deadline_s, start_s=start_s
    )
    assert found.replicas == replicas
    assert found.cost_high is None


def qwen3(hidden, layers, heads, inner, *, tied):
    return {
        **models.QWEN3_8B,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "tie_word_embeddings": tied,
    }


def gemma3(hidden, layers, heads, kv_heads, inner, window, head_dim=256):
    return {
        "model_type": "gemma3_text",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "sliding_window": window,
        "head_dim": head_dim,
        "torch_dtype": "bfloat16",
    }


SMOLLM2_360M = {
    **models.SMOLLM2_135M,
    "hidden_size": 960,
    "num_hidden_layers": 32,
    "num_attention_heads": 15,
    "num_key_value_heads": 5,
    "intermediate_size": 2560,
}
PUBLISHED = [
    (models.SMOLLM2_135M, 28391, 1),
    (SMOLLM2_360M, 17887, 1),
    (models.SMOLLM2_17B, 5255, 1),
    (qwen3(1024, 28, 16, 3072, tied=True), 13527, 1),
    (qwen3(2048, 28, 16, 6144, tied=True), 11710, 1),
    (qwen3(2560, 36, 32, 9728, tied=True), 7919, 1),
    (models.QWEN3_8B, 6338, 1),
    (qwen3(5120, 40, 40, 17408, tied=False), 4414, 1),
    (qwen3(5120, 64, 64, 25600, tied=False), 1987, 4),
    (gemma3(640, 18, 4, 1, 2048, 512), 22996, 1),
    (gemma3(1152, 26, 4, 1, 6912, 512), 14838, 1),
    (gemma3(2560, 34, 8, 4, 10240, 1024), 8501, 1),
    (gemma3(3840, 48, 16, 8, 15360, 1024), 2999, 1),
    (gemma3(5376, 62, 32, 16, 21504, 1024, head_dim=128), 1724, 2),
]
"""Output tokens a second and GPU of vLLM's defaults, and GPUs: all dense models of the table in
huggingface/datatrove, examples/inference/benchmark/README.md (H100, 256 slots)."""


@pytest.mark.parametrize(("config", "tokens_per_s", "num_devices"), PUBLISHED)
def test_published_throughput_lies_in_the_range_that_is_given_for_it(
    config, tokens_per_s, num_devices
):
    """Read at 1,500 tokens of context; the page does not state the lengths."""
    geometry = read_geometry(config, name="model")
    limits = EngineLimits(16, 256, 8192, memory_share=0.9, tensor_parallel=num_devices)
    fit = fit_memory(geometry, 80 * 10**9, limits, Sequences([1400], [100]), max_model_len=None)
    rates = H100.rates("bfloat16").times(num_devices)
    running = min(256, fit.max_concurrent_sequences)
    num_output_tokens = 10_000 * 3000
    decoded = Work(10_000, 0, 0, num_output_tokens, running)
    bound_s = at_least_s(geometry, rates, decoded).total_s
    efficiency = published_efficiency(bound_s, num_output_tokens, on_cpu=False)
    took_s = num_output_tokens / (tokens_per_s * num_devices)
    assert bound_s / efficiency.high <= took_s <= bound_s / efficiency.low


def test_small_models_are_held_up_by_the_host():
    small = published_efficiency(10.0, 1_000_000, on_cpu=False)
    large = published_efficiency(1000.0, 1_000_000, on_cpu=False)
    assert small.low < large.low
    assert small.high < large.high <= 0.9


def test_on_a_cpu_the_host_does_not_count():
    found = published_efficiency(10.0, 1_000_000, on_cpu=True)
    assert found.low < found.high < 1
    assert "two shared cores" in found.source
