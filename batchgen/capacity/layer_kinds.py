"""Which kind of block stands in which layer.

Most models repeat one layer. The others say in one of a dozen ways where they differ: a list of
layer types, a period with an offset, a pattern of letters, the first so many layers. All of these
are read here.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from batchgen.capacity.families import Family
from batchgen.capacity.keys import ConfigKeys
from batchgen.errors import DataError

_MIXERS: Final[Mapping[str, str]] = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "linear_attention": "linear",
    "mamba": "mamba",
    "mamba2": "mamba",
    "conv": "conv",
    "moe": "none",
    "mlp": "none",
}
_LETTERS: Final[Mapping[str, str]] = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
MOST_LAYERS: Final = 10_000
STATE_SPACES: Final = ("mamba", "falcon_mamba", "mamba2")


def mixer_kinds(keys: ConfigKeys, family: Family, num_layers: int) -> list[str]:
    """For each layer `full`, `sliding`, `linear`, `mamba`, `conv` or `none`."""
    named = _layer_names(keys)
    if named is not None:
        _check_length(keys, named, num_layers)
        return [_kind(keys, name) for name in named]
    if keys.model_type in (*STATE_SPACES, "granitemoehybrid"):
        return ["mamba"] * num_layers
    placed = _attention_places(keys, num_layers)
    if placed is not None:
        return ["full" if index in placed else _other_mixer(keys) for index in range(num_layers)]
    return _windows(keys, family, num_layers)


def _kind(keys: ConfigKeys, name: str) -> str:
    if name not in _MIXERS:
        raise DataError(
            f"{keys.name}: config.json names layers '{name}', whose memory and arithmetic are not"
            " known here"
        )
    kind = _MIXERS[name]
    return _other_mixer(keys) if kind in ("linear", "mamba") else kind


def _layer_names(keys: ConfigKeys) -> Sequence[str] | None:
    pattern = keys.value("hybrid_override_pattern")
    if isinstance(pattern, str):
        return [_LETTERS.get(letter, letter) for letter in pattern]
    return keys.texts("layer_types")


def _check_length(keys: ConfigKeys, names: Sequence[str], num_layers: int) -> None:
    if len(names) != num_layers:
        raise DataError(
            f"{keys.name}: config.json lists {len(names)} layer types for {num_layers} layers"
        )


def count_layers(keys: ConfigKeys) -> int:
    """Layers of the decoder."""
    names = _layer_names(keys)
    if names is not None and keys.value("num_hidden_layers") is None:
        return len(names)
    num_layers = keys.positive("num_hidden_layers")
    if num_layers > MOST_LAYERS:
        raise DataError(f"{keys.name}: config.json: num_hidden_layers: {num_layers} is no model's")
    return num_layers


def _attention_places(keys: ConfigKeys, num_layers: int) -> set[int] | None:
    """The layers with attention in a model whose other layers are recurrent; None: no such one."""
    for key in ("attn_layer_indices", "full_attn_idxs"):
        if keys.value(key) is not None:
            return set(keys.integers(key) or ())
    if keys.model_type == "bamba":
        return set()
    every = range(num_layers)
    if keys.value("attn_layer_period") is not None:
        period, offset = keys.positive("attn_layer_period"), keys.integer("attn_layer_offset")
        return {index for index in every if index % period == offset}
    if keys.value("full_attention_interval") is not None:
        interval = keys.positive("full_attention_interval")
        return {index for index in every if (index + 1) % interval == 0}
    return None


def _other_mixer(keys: ConfigKeys) -> str:
    """The recurrence of a hybrid model, by the keys that describe it."""
    if keys.value("linear_num_key_heads") is not None:
        return "linear"
    return "conv" if keys.value("conv_L_cache") is not None else "mamba"


def _windows(keys: ConfigKeys, family: Family, num_layers: int) -> list[str]:
    """Attention layers that see everything, and those that see a window."""
    window = keys.optional_integer("sliding_window")
    if not window or keys.value("use_sliding_window") is False:
        return ["full"] * num_layers
    pattern = keys.value("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        letters = (pattern[index % len(pattern)] for index in range(num_layers))
        return ["sliding" if letter == "L" else "full" for letter in letters]
    every = pattern if isinstance(pattern, int) and pattern else family.window_every
    if every is not None:
        return ["sliding" if (index + 1) % every else "full" for index in range(num_layers)]
    first = keys.integer("max_window_layers", 0) if keys.flag("use_sliding_window") else 0
    return ["sliding" if index >= first else "full" for index in range(num_layers)]


def sparse_layers(keys: ConfigKeys, num_layers: int) -> set[int]:
    """The layers whose feed-forward network is a mixture of experts."""
    if count_experts(keys) <= 1:
        return set()
    every = range(num_layers)
    named = keys.texts("mlp_layer_types")
    if named is not None:
        return {index for index, name in enumerate(named) if name == "sparse"}
    names = _layer_names(keys)
    if names is not None and "moe" in names:
        return {index for index, name in enumerate(names) if name == "moe"}
    if keys.value("expert_layer_period") is not None:
        period, offset = keys.positive("expert_layer_period"), keys.integer("expert_layer_offset")
        return {index for index in every if index % period == offset}
    dense = set(keys.integers("mlp_only_layers") or ()) | set(
        range(keys.integer("first_k_dense_replace", 0))
    )
    step = keys.integer("decoder_sparse_step", keys.integer("moe_layer_freq", 1)) or 1
    is_counted_from_1 = keys.value("decoder_sparse_step") is not None
    return {
        index for index in every if index not in dense and (index + is_counted_from_1) % step == 0
    }


def count_experts(keys: ConfigKeys) -> int:
    """Routed experts of a sparse layer; 0 or 1 where there are none."""
    return keys.integer("num_experts", 0)


def layers_with_feed(keys: ConfigKeys, num_layers: int) -> list[bool]:
    """Whether a layer has a feed-forward network beside, or in place of, its mixer."""
    if keys.model_type in STATE_SPACES:
        return [False] * num_layers
    names = _layer_names(keys)
    if keys.model_type == "nemotron_h" and names is not None:
        return [name in ("mlp", "moe") for name in names]
    return [True] * num_layers
