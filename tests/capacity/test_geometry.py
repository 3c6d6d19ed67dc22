"""Weights and KV cache of published models are known numbers; so is what a model is refused for."""

import pytest
from capacity import model_configs as models

from batchgen.capacity.geometry import Geometry, load_geometry, read_geometry
from batchgen.config.models import ModelConfig
from batchgen.errors import DataError, JobFileError

KIB = 1024


def geometry(config, **options):
    return read_geometry(config, name="model", **options)


@pytest.mark.parametrize(
    ("config", "num_bytes"),
    [
        (models.OPT_13B, 819_200),
        (models.LLAMA_31_8B, 128 * KIB),
        (models.QWEN_25_05B, 12 * KIB),
        (models.SMOLLM2_135M, 23_040),
        (models.SMOLLM2_17B, 192 * KIB),
        (models.LLAMA_2_70B, 320 * KIB),
        (models.DEEPSEEK_V3, 70_272),
        (models.QWEN3_8B, 144 * KIB),
        (models.FALCON_MAMBA_7B, 0),
    ],
)
def test_kv_bytes_of_a_token_are_those_that_are_known(config, num_bytes):
    assert geometry(config).kv_bytes_per_token == num_bytes


def test_opt_13b_takes_52_gb_for_32_sequences_of_2000_tokens():
    assert 32 * geometry(models.OPT_13B).kv_bytes(2000) == 52_428_800_000


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (models.OPT_13B, 12.85e9),
        (models.LLAMA_31_8B, 8.03e9),
        (models.LLAMA_2_70B, 68.98e9),
        (models.QWEN_25_05B, 0.494e9),
        (models.SMOLLM2_135M, 134.5e6),
        (models.SMOLLM2_17B, 1.71e9),
        (models.MISTRAL_7B, 7.24e9),
        (models.MIXTRAL_8X7B, 46.7e9),
        (models.QWEN3_8B, 8.19e9),
        (models.QWEN3_30B_A3B, 30.5e9),
        (models.QWEN3_NEXT_80B, 79.7e9),
        (models.DEEPSEEK_V3, 671e9),
        (models.GEMMA_2_2B, 2.61e9),
        (models.GEMMA_3_4B, 3.88e9),
        (models.GPT_OSS_20B, 20.9e9),
        (models.GPT2, 124.4e6),
        (models.PHI_2, 2.78e9),
        (models.JAMBA_V01, 51.6e9),
        (models.FALCON_MAMBA_7B, 7.27e9),
    ],
)
def test_parameters_are_as_many_as_published(config, published):
    assert geometry(config).num_params == pytest.approx(published, rel=0.003)


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (models.MIXTRAL_8X7B, 12.9e9),
        (models.QWEN3_30B_A3B, 3.3e9),
        (models.DEEPSEEK_V3, 37e9),
        (models.GPT_OSS_20B, 3.6e9),
    ],
)
def test_active_parameters_are_as_many_as_published(config, published):
    """Publishers count the input embedding in, or leave the output matrix out: a few percent."""
    assert geometry(config).num_active_params == pytest.approx(published, rel=0.1)


def test_a_dense_model_multiplies_with_all_but_its_input_embedding():
    found = geometry(models.LLAMA_31_8B)
    assert found.num_params - found.num_active_params == 128256 * 4096


def test_a_tied_embedding_is_the_output_matrix():
    found = geometry(models.SMOLLM2_135M)
    assert found.num_params == found.num_active_params


def test_learned_positions_are_stored_and_not_multiplied_with():
    found = geometry(models.GPT2)
    assert found.num_params - found.num_active_params == 1024 * 768


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (models.OPT_13B, "MHA"),
        (models.LLAMA_31_8B, "GQA"),
        ({**models.GPT2, "model_type": "gpt_bigcode", "multi_query": True}, "MQA"),
        (models.DEEPSEEK_V3, "MLA"),
        (models.MISTRAL_7B, "GQA, sliding window"),
        (models.QWEN3_NEXT_80B, "GQA, recurrent state"),
        (models.FALCON_MAMBA_7B, "recurrent state"),
    ],
)
def test_the_kind_of_attention_is_named(config, name):
    assert geometry(config).attention == name


def test_one_kv_head_serves_all_query_heads():
    config = {**models.GPT2, "model_type": "gpt_bigcode", "multi_query": True}
    assert geometry(config).kv_bytes_per_token == 2 * 12 * 64 * 2


@pytest.mark.parametrize(
    ("dtype", "weight_bytes", "kv_bytes"),
    [(None, 2, 2), ("auto", 2, 2), ("float32", 4, 4), ("half", 2, 2)],
)
def test_dtype_sets_the_bytes_of_weights_and_cache(dtype, weight_bytes, kv_bytes):
    found = geometry(models.SMOLLM2_135M, dtype=dtype)
    assert found.weight_bytes == weight_bytes * found.num_params
    assert found.kv_bytes_per_token == kv_bytes * 2 * 30 * 3 * 64


def test_a_float32_checkpoint_is_loaded_in_16_bits():
    found = geometry(models.GEMMA_2_2B)
    assert (found.dtype, found.weight_dtype_bytes) == ("bfloat16", 2.0)


@pytest.mark.parametrize("name", ["fp8", "fp8_e4m3", "fp8_e5m2"])
def test_fp8_halves_the_kv_cache(name):
    assert geometry(models.LLAMA_31_8B, kv_cache_dtype=name).kv_bytes_per_token == 64 * KIB


def test_a_checkpoint_may_ask_for_an_fp8_cache():
    scheme = {"kv_cache_scheme": {"num_bits": 8, "type": "float"}, "quant_method": "fp8"}
    found = geometry({**models.LLAMA_31_8B, "quantization_config": scheme})
    assert found.kv_bytes_per_token == 64 * KIB


def test_an_unknown_cache_format_is_refused():
    with pytest.raises(DataError, match=r"kv_cache_dtype 'turboquant_3bit_nc'.*fp8"):
        geometry(models.LLAMA_31_8B, kv_cache_dtype="turboquant_3bit_nc")


def test_whole_blocks_are_counted():
    found = geometry(models.LLAMA_31_8B)
    assert found.kv_bytes(1, block_tokens=16) == 16 * 128 * KIB
    assert found.kv_bytes(17, block_tokens=16) == 32 * 128 * KIB
    assert found.kv_bytes(0, block_tokens=16) == 0


def test_a_sliding_window_stops_growing():
    found = geometry(models.MISTRAL_7B)
    assert found.kv_bytes(4096) == 4096 * 128 * KIB
    assert found.kv_bytes(100_000) == 4096 * 128 * KIB
    assert found.kv_bytes_per_token == 128 * KIB


def test_a_window_in_blocks_may_begin_in_the_middle_of_one():
    found = geometry(models.MISTRAL_7B)
    assert found.kv_bytes(100_000, block_tokens=16) == (4096 + 16) * 128 * KIB


def test_layers_with_and_without_window_alternate():
    found = geometry(models.GPT_OSS_20B)
    of_layer = 2 * 8 * 64 * 2
    assert found.kv_bytes(10_000) == 12 * of_layer * (128 + 10_000)


@pytest.mark.parametrize(
    ("config", "num_full"),
    [(models.GEMMA_2_2B, 13), (models.GEMMA_3_4B, 5), (models.QWEN_25_05B, 24)],
)
def test_the_family_says_which_layers_have_a_window(config, num_full):
    full = [memory for memory in geometry(config).memories if memory.kind == "full"]
    assert sum(memory.num_layers for memory in full) == num_full


def test_a_window_that_is_switched_on_begins_at_a_layer():
    config = {**models.QWEN_25_05B, "use_sliding_window": True}
    kinds = {memory.kind: memory.num_layers for memory in geometry(config).memories}
    assert kinds == {"full": 21, "sliding": 3}


def test_a_hybrid_model_keeps_one_state_beside_the_cache():
    found = geometry(models.QWEN3_NEXT_80B)
    per_token = 12 * 2 * 2 * 256 * 2
    state = 36 * 2 * (32 * 128 * 128 + (2 * 16 * 128 + 32 * 128) * 3)
    assert found.kv_bytes_per_token == per_token
    assert found.kv_bytes(1000) == 1000 * per_token + state
    assert found.kv_bytes(0) == state


def test_a_state_may_have_a_type_of_its_own():
    plain = geometry(models.FALCON_MAMBA_7B).kv_bytes(0)
    wide = geometry(models.FALCON_MAMBA_7B, ssm_cache_dtype="float32").kv_bytes(0)
    assert plain == 64 * 8192 * (3 + 16) * 2
    assert wide == 64 * 8192 * (3 * 2 + 16 * 4)


def test_kv_heads_are_dealt_out_and_latents_are_not():
    assert geometry(models.LLAMA_31_8B).kv_bytes(100, num_devices=4) == 100 * 32 * KIB
    assert geometry(models.LLAMA_31_8B).kv_bytes(100, num_devices=16) == 100 * 16 * KIB
    assert geometry(models.DEEPSEEK_V3).kv_bytes(100, num_devices=8) == 7_027_200


def test_attention_costs_four_operations_per_head_dimension_and_context_token():
    assert geometry(models.LLAMA_31_8B).attention_flops(1000) == 4 * 32 * 32 * 128 * 1000


def test_attention_inside_a_window_costs_no_more_than_the_window():
    found = geometry(models.MISTRAL_7B)
    assert found.attention_flops(9000) == found.attention_flops(4096)


def test_the_cost_of_a_recurrence_does_not_depend_on_the_context():
    found = geometry(models.FALCON_MAMBA_7B)
    assert found.attention_flops(10) == found.attention_flops(100_000) > 0


def test_a_geometry_without_layers_counts_full_attention():
    plain = Geometry(
        name="plain",
        num_layers=2,
        hidden_size=8,
        vocab_size=16,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        num_params=1000,
        num_active_params=900,
        weight_bytes=2000,
        weight_dtype_bytes=2.0,
        kv_bytes_per_token=32,
    )
    assert plain.kv_bytes(10) == 320
    assert plain.attention_flops(10) == 4 * 2 * 2 * 4 * 10
    assert plain.weight_bytes_read(1) == 1800


def test_a_step_reads_all_that_is_multiplied_with():
    found = geometry(models.LLAMA_31_8B)
    assert found.weight_bytes_read(1) == found.weight_bytes_read(100) == 2 * found.num_active_params


def test_a_step_reads_the_experts_that_its_tokens_are_sent_to():
    found = geometry(models.MIXTRAL_8X7B)
    assert found.weight_bytes_read(1) == pytest.approx(2 * found.num_active_params)
    assert found.weight_bytes_read(4) < found.weight_bytes_read(16)
    everything = found.weight_bytes - 2 * 32000 * 4096
    assert found.weight_bytes_read(float("inf")) == pytest.approx(everything)


def test_a_language_part_inside_a_larger_model_is_found_and_said():
    found = geometry(models.GEMMA_3_4B)
    assert found.num_layers == 34
    assert found.notes == ("only the language part is counted, without vision_config",)


def test_an_unknown_family_is_refused_with_those_that_are_known():
    with pytest.raises(DataError, match=r"model_type 'brandnew'.*llama.*qwen3_moe"):
        geometry({**models.LLAMA_31_8B, "model_type": "brandnew"})


def test_an_encoder_decoder_is_refused():
    with pytest.raises(DataError, match="encoder-decoder"):
        geometry({"model_type": "t5", "is_encoder_decoder": True})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, "no 'num_hidden_layers'"),
        ({"hidden_size": "4096"}, "hidden_size: must be a whole number, is '4096'"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers: 1000000000000"),
        ({"num_attention_heads": 0}, "num_attention_heads: must be greater than 0"),
        ({"layer_types": ["full_attention"] * 3}, "3 layer types for 32 layers"),
        ({"layer_types": ["hyper_attention"] * 32}, "layers 'hyper_attention'"),
        ({"layer_types": 7}, "layer_types: must be a list of texts"),
        ({"torch_dtype": "float4"}, "dtype 'float4'"),
        ({"quantization_config": {"quant_method": "novel"}}, "quantization 'novel'"),
    ],
)
def test_a_config_that_does_not_say_enough_is_refused(change, message):
    with pytest.raises(DataError, match=message):
        geometry({**models.LLAMA_31_8B, **change})


@pytest.mark.parametrize("config", [{}, {"model_type": "llama"}, {"model_type": 3}])
def test_hardly_any_config_is_refused(config):
    with pytest.raises(DataError):
        geometry(config)


def test_a_model_that_is_not_here_is_named(tmp_path):
    with pytest.raises(JobFileError, match=r"missing'.*--config"):
        load_geometry(ModelConfig(name=str(tmp_path / "missing")))


def test_the_simulated_engine_has_no_model():
    with pytest.raises(JobFileError, match="simulated engine has no model"):
        load_geometry(ModelConfig(engine="simulated"))
