"""Every family has as many weights as its reference implementation in transformers.

The reference is built on torch's meta device: shapes without memory. Where a class's defaults make
no complete model, values of the kind that published ones have are given.
"""

import json
import warnings

import pytest

from batchgen.capacity.families import FAMILIES, family_of
from batchgen.capacity.keys import ConfigKeys
from batchgen.capacity.layers import read_decoder

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 1000,
}
MAMBA_2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
CASES = [
    *(
        (name, {})
        for name in sorted(FAMILIES)
        if name
        not in ("kimi_k2", "ministral", "bamba", "deepseek_v2", "granitemoehybrid", "nemotron_h")
    ),
    ("bamba", {**SMALL, **MAMBA_2, "attn_layer_indices": [1]}),
    ("cohere", {**SMALL, "use_qk_norm": True}),
    (
        "deepseek_v2",
        {
            **SMALL,
            **MOE,
            "q_lora_rank": None,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "first_k_dense_replace": 1,
            "n_routed_experts": 4,
            "n_shared_experts": 2,
        },
    ),
    ("deepseek_v3", {**SMALL, **MOE, "attention_bias": True, "n_routed_experts": 16}),
    (
        "granitemoehybrid",
        {
            **SMALL,
            **MAMBA_2,
            "layer_types": ["mamba", "mamba", "attention", "mamba"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 48,
        },
    ),
    (
        "granitemoehybrid",
        {
            **SMALL,
            **MAMBA_2,
            "layer_types": ["mamba", "mamba", "attention", "mamba"],
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 48,
        },
    ),
    ("glm4_moe", {**SMALL, **MOE, "use_qk_norm": True, "attention_bias": True}),
    ("lfm2", {**SMALL, "full_attn_idxs": [1], "block_auto_adjust_ff_dim": False}),
    ("lfm2", {**SMALL, "layer_types": ["conv"] * 4, "block_ffn_dim_multiplier": 1.7}),
    ("llama", {**SMALL, "attention_bias": True, "mlp_bias": True, "head_dim": 32}),
    ("mamba", {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 1000, "use_bias": True}),
    (
        "nemotron_h",
        {
            **SMALL,
            **MOE,
            "num_hidden_layers": 6,
            "hybrid_override_pattern": "M-M*-E",
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 16,
            "n_routed_experts": 4,
            "moe_shared_expert_intermediate_size": 48,
        },
    ),
    ("phi", {**SMALL, "qk_layernorm": True}),
    (
        "qwen2_moe",
        {
            **SMALL,
            **MOE,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "num_experts": 4,
            "shared_expert_intermediate_size": 48,
        },
    ),
    ("stablelm", {**SMALL, "use_parallel_residual": True, "use_qkv_bias": True}),
    ("stablelm", {**SMALL, "qk_layernorm": True}),
    (
        "opt",
        {
            "hidden_size": 64,
            "ffn_dim": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "vocab_size": 1000,
            "word_embed_proj_dim": 32,
            "do_layer_norm_before": False,
            "_remove_final_layer_norm": True,
        },
    ),
]


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "values"), CASES)
def test_weights_are_those_of_the_reference_implementation(transformers, model_type, values):
    import torch

    config = transformers.CONFIG_MAPPING[model_type](**values)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_config(config)
    written = json.loads(config.to_json_string(use_diff=False))
    family = family_of(model_type)
    keys = ConfigKeys(written, name=model_type, defaults=family.defaults)
    expected = sum(weight.numel() for weight in model.parameters())
    assert read_decoder(keys, family).num_params == expected
