"""What a quantized model takes is known from its config, or it is refused."""

import pytest
from capacity import model_configs as models

from batchgen.capacity.geometry import read_geometry
from batchgen.errors import DataError

LINEAR = 32 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
"""Weights of the layers' matrices of Llama-3.1-8B."""
REST = 8_030_261_248 - LINEAR


def quantized(section, **options):
    return read_geometry(
        {**models.LLAMA_31_8B, "quantization_config": section}, name="model", **options
    )


@pytest.mark.parametrize(
    ("section", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 128**2),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}
                },
            },
            4 + 16 / 128,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
                },
            },
            8,
        ),
    ],
)
def test_only_the_matrices_of_the_layers_are_smaller(section, bits):
    assert quantized(section).weight_bytes == pytest.approx(LINEAR * bits / 8 + 2 * REST)


def test_only_the_experts_of_gpt_oss_are_in_mxfp4():
    found = read_geometry(models.GPT_OSS_20B, name="model")
    assert found.weight_bytes == pytest.approx(13.76e9, rel=0.01)
    assert found.expert_bytes / found.num_params < 0.6


def test_deepseek_v3_takes_673_gb_in_fp8():
    assert read_geometry(models.DEEPSEEK_V3, name="model").weight_bytes == pytest.approx(
        673.2e9, rel=0.001
    )


@pytest.mark.parametrize(
    ("section", "dtype"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "bfloat16"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {"num_bits": 8, "type": "int"},
                        "input_activations": {"num_bits": 8, "type": "int"},
                    }
                },
            },
            "int8",
        ),
    ],
)
def test_products_are_in_the_small_format_only_where_both_sides_are(section, dtype):
    assert quantized(section).matmul_dtype == dtype


@pytest.mark.parametrize(
    ("method", "bits"), [("fp8", 8), ("bitsandbytes", 4.5), ("fp8_per_tensor", 8)]
)
def test_an_engine_may_quantize_at_load_time(method, bits):
    found = read_geometry(models.LLAMA_31_8B, name="model", quantization=method)
    assert found.weight_bytes == pytest.approx(LINEAR * bits / 8 + 2 * REST)


@pytest.mark.parametrize(
    "section",
    [
        {"quant_method": "hqq"},
        {"quant_method": "awq"},
        {"quant_method": "compressed-tensors"},
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {}}},
        {"quant_method": "modelopt", "quant_algo": "NOVEL"},
    ],
)
def test_what_is_not_known_is_refused(section):
    with pytest.raises(DataError, match=r"quantization .* is not known here"):
        quantized(section)
