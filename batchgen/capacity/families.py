"""The model families whose weights can be counted from config.json alone.

A config says how large a model is and leaves unsaid how it is built: whether the feed-forward
network has a gate, where biases and norms stand, whether the output matrix is the embedding. That
is what a family says, in a row of this table. A family that is not here is refused rather than
guessed. All of them are compared with their reference implementation in the tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Family:
    """How a decoder is built. A text in place of true or false is the config key that says so."""

    gated: bool = True
    """The feed-forward network has a gate (three matrices), else two."""
    tied: bool = False
    """The output matrix is the embedding, unless the config says otherwise."""
    norms: int = 2
    """Norms of a layer."""
    norm_bias: bool = False
    norm_weight: bool = True
    final_norm: bool = True
    embedding_norm: bool = False
    qkv_bias: bool | str = "attention_bias"
    out_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = "mlp_bias"
    head_bias: bool = False
    qk_norm: str = ""
    """Norms of queries and keys: `head`, `head_and_bias`, `full`, or none."""
    qk_norm_key: str | None = None
    """The config key without which there is none."""
    positions: int | None = None
    """Learned positions: so many more than `max_position_embeddings`. None: no such table."""
    window_every: int | None = None
    """Of so many layers the last one sees everything, the others a window; where the config lists
    no `layer_types`."""
    gated_attention: bool = False
    sinks: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    shares: str = ""
    """How the network that all tokens pass is given: `number` of experts' sizes, or its `size`."""
    ssm_dtype: str | None = None
    """Type in which vLLM keeps recurrent states, where the config does not say."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What the family's configuration class takes where a published config is silent."""


_PLAIN: Final = Family()
_QWEN2: Final = Family(qkv_bias=True, out_bias=False, defaults={"use_sliding_window": False})
_QWEN2_MOE: Final = Family(
    qkv_bias="qkv_bias",
    out_bias=False,
    shares="size",
    shared_gate=True,
    defaults={"qkv_bias": True, "use_sliding_window": False},
)
_QWEN3: Final = Family(qk_norm="head", defaults={"use_sliding_window": False})
_QWEN3_NEXT: Final = Family(
    qk_norm="head",
    gated_attention=True,
    shares="size",
    shared_gate=True,
    defaults={"full_attention_interval": 4},
)
_GPT2: Final = Family(
    gated=False,
    tied=True,
    norm_bias=True,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    positions=0,
)
_DEEPSEEK: Final = Family(shares="number")

FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "arcee": Family(gated=False),
        "bamba": _PLAIN,
        "bloom": Family(
            gated=False,
            tied=True,
            norm_bias=True,
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
            embedding_norm=True,
        ),
        "cohere": Family(tied=True, norms=1, qk_norm="full", qk_norm_key="use_qk_norm"),
        "cohere2": Family(tied=True, norms=1, window_every=4),
        "deepseek_v2": _DEEPSEEK,
        "deepseek_v3": _DEEPSEEK,
        "exaone4": Family(qk_norm="head"),
        "falcon_mamba": Family(norms=1),
        "gemma": Family(tied=True),
        "gemma2": Family(tied=True, norms=4, window_every=2),
        "gemma3_text": Family(
            tied=True,
            norms=4,
            qk_norm="head",
            window_every=6,
            defaults={
                "vocab_size": 262208,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "head_dim": 256,
                "sliding_window": 4096,
                "max_position_embeddings": 131072,
            },
        ),
        "glm": Family(out_bias=False),
        "glm4": Family(norms=4, out_bias=False),
        "glm4_moe": Family(
            out_bias=False, qk_norm="head", qk_norm_key="use_qk_norm", shares="number"
        ),
        "gpt2": _GPT2,
        "gpt_bigcode": _GPT2,
        "gpt_neox": Family(
            gated=False, norm_bias=True, mlp_bias=True, defaults={"attention_bias": True}
        ),
        "gpt_oss": Family(
            sinks=True,
            expert_bias=True,
            router_bias=True,
            window_every=2,
            defaults={"attention_bias": True},
        ),
        "gptj": Family(gated=False, norms=1, norm_bias=True, mlp_bias=True, head_bias=True),
        "granite": _PLAIN,
        "granitemoe": _PLAIN,
        "granitemoehybrid": _PLAIN,
        "granitemoeshared": _PLAIN,
        "jamba": _PLAIN,
        "kimi_k2": _DEEPSEEK,
        "lfm2": Family(tied=True, qk_norm="head"),
        "llama": _PLAIN,
        "mamba": Family(norms=1, tied=True),
        "mamba2": Family(norms=1),
        "ministral": _PLAIN,
        "mistral": _PLAIN,
        "mixtral": _PLAIN,
        "nemotron_h": Family(gated=False, norms=1, shares="size", ssm_dtype="float32"),
        "olmo": Family(norm_weight=False),
        "olmo2": Family(qk_norm="full"),
        "olmo3": Family(qk_norm="full", window_every=4),
        "olmoe": Family(qk_norm="full"),
        "opt": Family(
            gated=False,
            tied=True,
            norm_bias=True,
            qkv_bias="enable_bias",
            out_bias="enable_bias",
            mlp_bias="enable_bias",
            positions=2,
            defaults={"enable_bias": True},
        ),
        "phi": Family(
            gated=False,
            norms=1,
            norm_bias=True,
            qkv_bias=True,
            out_bias=True,
            mlp_bias=True,
            head_bias=True,
            qk_norm="head_and_bias",
            qk_norm_key="qk_layernorm",
        ),
        "phi3": _PLAIN,
        "qwen2": _QWEN2,
        "qwen2_moe": _QWEN2_MOE,
        "qwen3": _QWEN3,
        "qwen3_5_moe_text": _QWEN3_NEXT,
        "qwen3_5_text": _QWEN3_NEXT,
        "qwen3_moe": _QWEN3,
        "qwen3_next": _QWEN3_NEXT,
        "seed_oss": Family(out_bias="attention_out_bias"),
        "smollm3": Family(tied=True),
        "stablelm": Family(
            norm_bias=True,
            qkv_bias="use_qkv_bias",
            out_bias=False,
            qk_norm="full",
            qk_norm_key="qk_layernorm",
        ),
        "starcoder2": Family(
            gated=False,
            tied=True,
            norm_bias=True,
            qkv_bias="use_bias",
            out_bias="use_bias",
            mlp_bias="use_bias",
            defaults={"use_bias": True},
        ),
    }
)

ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "gemma3": "gemma3_text",
        "ministral3": "mistral",
        "mistral3": "mistral",
        "qwen2_5_vl": "qwen2",
        "qwen2_5_vl_text": "qwen2",
        "qwen2_vl": "qwen2",
        "qwen2_vl_text": "qwen2",
        "qwen3_5": "qwen3_5_text",
        "qwen3_5_moe": "qwen3_5_moe_text",
        "qwen3_vl_moe_text": "qwen3_moe",
        "qwen3_vl_text": "qwen3",
    }
)
"""Other names under which the language parts of multi-modal models appear."""


def family_of(model_type: str) -> Family | None:
    """The family of a `model_type`; None where it is not in the table."""
    return FAMILIES.get(ALIASES.get(model_type, model_type))
