"""The least time of a piece of work follows from counts, bytes and two rates."""

import pytest

from batchgen.capacity.geometry import Geometry
from batchgen.capacity.rates import Rates
from batchgen.capacity.roofline import (
    Bound,
    Work,
    at_least_s,
    critical_batch,
    decode_step_s,
    prefill_tokens_per_s,
)

H100 = Rates(989e12, 3.35e12, "data sheet")
LLAMA = Geometry(
    name="llama-3.1-8b",
    num_layers=32,
    hidden_size=4096,
    vocab_size=128_256,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    num_params=8_030_261_248,
    num_active_params=7_504_924_672,
    weight_bytes=16_060_522_496,
    weight_dtype_bytes=2.0,
    kv_bytes_per_token=131_072,
)
OUTPUT_PARAMS = 128_256 * 4096
HIDDEN_PARAMS = LLAMA.num_active_params - OUTPUT_PARAMS


def work(rows=100, prompt=1000, cached=0, output=200, running=64.0):
    return Work(rows, rows * prompt, rows * cached, rows * output, running)


def test_prefill_is_arithmetic_of_each_token_and_one_output_layer_per_prompt():
    bound = at_least_s(LLAMA, H100, work(rows=10, prompt=1000, output=1))
    per_token = 2 * HIDDEN_PARAMS + LLAMA.attention_flops(500)
    assert bound.prefill_s == pytest.approx(
        10 * (1000 * per_token + 2 * OUTPUT_PARAMS) / H100.matmul_flops_per_s
    )
    assert bound.decode_s == 0


def test_the_prefill_rate_is_that_of_the_bound():
    alone = at_least_s(LLAMA, H100, work(rows=1, prompt=2000, output=1))
    assert 2000 / alone.prefill_s == pytest.approx(prefill_tokens_per_s(LLAMA, H100, 2000))


def test_cached_prompt_tokens_are_not_computed_again():
    whole = at_least_s(LLAMA, H100, work(cached=0))
    half = at_least_s(LLAMA, H100, work(cached=500))
    assert 0.5 < half.prefill_s / whole.prefill_s < 0.56


def test_a_step_of_few_sequences_reads_the_weights_and_their_cache():
    step_s = decode_step_s(LLAMA, H100, num_running=2, context=1500)
    num_bytes = 2 * LLAMA.num_active_params + 2 * 1500 * 131_072
    assert step_s == pytest.approx(num_bytes / H100.memory_bytes_per_s)


def test_a_step_of_many_sequences_is_arithmetic():
    step_s = decode_step_s(LLAMA, H100, num_running=2000, context=10)
    flops = 2000 * (2 * LLAMA.num_active_params + LLAMA.attention_flops(10))
    assert step_s == pytest.approx(flops / H100.matmul_flops_per_s)


def test_the_critical_batch_of_16_bit_weights_is_the_ratio_of_the_rates():
    assert critical_batch(LLAMA, H100) == pytest.approx(989e12 / 3.35e12)


def test_the_first_token_of_a_row_needs_no_decode_step():
    one = at_least_s(LLAMA, H100, work(output=2))
    two = at_least_s(LLAMA, H100, work(output=3))
    assert two.decode_s == pytest.approx(2 * one.decode_s, rel=0.01)


def test_completions_of_one_prompt_share_its_prefill_and_have_first_tokens_of_their_own():
    job = Work(10, 1000, 0, 40, 4.0, num_sequences=40)
    assert at_least_s(LLAMA, H100, job).decode_s == 0


def test_prefill_hides_behind_memory_reads_but_not_behind_arithmetic():
    reading = at_least_s(LLAMA, H100, work(running=8, prompt=10, output=500))
    assert reading.overlap_s == pytest.approx(reading.prefill_s)
    assert reading.total_s == pytest.approx(reading.decode_s)
    computing = at_least_s(LLAMA, H100, work(running=5000, prompt=10, output=20))
    assert computing.overlap_s == 0
    assert computing.total_s == computing.prefill_s + computing.decode_s


def test_more_sequences_in_a_step_never_raise_the_bound():
    bounds = [at_least_s(LLAMA, H100, work(running=n)).total_s for n in (1, 4, 16, 64, 256, 1024)]
    assert bounds == sorted(bounds, reverse=True)


def test_a_mixture_of_experts_reads_more_of_them_the_more_sequences_there_are():
    sparse = Geometry(
        name="sparse",
        num_layers=2,
        hidden_size=64,
        vocab_size=1000,
        num_heads=2,
        num_kv_heads=2,
        head_dim=32,
        num_params=10**9,
        num_active_params=10**8,
        weight_bytes=2 * 10**9,
        weight_dtype_bytes=2.0,
        kv_bytes_per_token=0,
        num_experts=64,
        num_experts_per_token=4,
        expert_bytes=19 * 10**8,
        shared_bytes=10**8,
    )
    slow_memory = Rates(1e18, 1e9, "")
    one, many = (decode_step_s(sparse, slow_memory, n, 1) for n in (1, 1000))
    assert one == pytest.approx(0.1 + 1.9 * 4 / 64)
    assert many == pytest.approx(2.0)


def test_no_rows_take_no_time():
    assert at_least_s(LLAMA, H100, Work(0, 0, 0, 0, 0.0)) == Bound(0.0, 0.0)


def test_several_devices_have_the_sum_of_their_rates():
    two = H100.times(2)
    assert two.memory_bytes_per_s == 2 * H100.memory_bytes_per_s
    assert two.source == "2 x data sheet"
