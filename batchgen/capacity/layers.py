"""config.json to a decoder: the blocks of every layer, and what stands around them."""

from dataclasses import dataclass
from typing import Final

from batchgen.capacity.blocks import (
    Block,
    Heads,
    Weights,
    attention,
    delta_net,
    experts,
    feed_forward,
    latent_attention,
    mamba,
    mamba2,
    short_conv,
)
from batchgen.capacity.families import Family
from batchgen.capacity.keys import ConfigKeys
from batchgen.capacity.layer_kinds import (
    STATE_SPACES,
    count_experts,
    count_layers,
    layers_with_feed,
    mixer_kinds,
    sparse_layers,
)
from batchgen.errors import DataError

_NO_BLOCK: Final = Block()


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model's blocks, and what stands around them."""

    heads: Heads
    hidden_size: int
    vocab_size: int
    layers: tuple[tuple[Block, Block], ...]
    """Mixer and feed-forward block of each layer."""
    norms: int
    """Weights of all norms."""
    embedding: int
    """Of the table that tokens are looked up in."""
    positions: int
    head: Weights
    """Of the output matrix; none where it is the embedding."""
    around: Weights
    """Projections between embedding and layers (OPT-350M)."""
    num_experts: int
    num_experts_per_token: int

    @property
    def is_tied(self) -> bool:
        """Whether the output matrix is the embedding."""
        return not self.head.linear

    @property
    def always(self) -> Weights:
        """What every token passes, the tables and the output matrix left out."""
        blocks = (block.weights for layer in self.layers for block in layer)
        return sum(blocks, Weights(0, self.norms) + self.around)

    @property
    def experts(self) -> Weights:
        """All routed experts of all layers."""
        return sum((feed.experts for _, feed in self.layers), Weights())

    @property
    def feed_size(self) -> int:
        """Values that a token becomes in the widest feed-forward network."""
        return max(feed.width for _, feed in self.layers)

    @property
    def num_params(self) -> int:
        """All that is stored."""
        tables = self.embedding + self.positions + self.head.total
        return self.always.total + self.experts.total + tables

    @property
    def num_active_params(self) -> int:
        """What one token is multiplied with: its experts, the output matrix, no tables."""
        share = self.num_experts_per_token / self.num_experts if self.num_experts else 0.0
        head = self.embedding if self.is_tied else self.head.total
        return self.always.total + round(self.experts.total * share) + head


def read_decoder(keys: ConfigKeys, family: Family) -> Decoder:
    """The decoder that a config describes. Raises DataError where it does not say enough."""
    hidden, vocab = keys.positive("hidden_size"), keys.positive("vocab_size")
    num_layers = count_layers(keys)
    kinds = mixer_kinds(keys, family, num_layers)
    heads = _heads(keys, hidden) if set(kinds) & {"full", "sliding"} else Heads(0, 0, 0)
    sparse = sparse_layers(keys, num_layers)
    feeds = layers_with_feed(keys, num_layers)
    layers = tuple(
        (
            _mixer(keys, family, kind, hidden, heads),
            _feed(keys, family, hidden, is_sparse=index in sparse) if feeds[index] else _NO_BLOCK,
        )
        for index, kind in enumerate(kinds)
    )
    width = keys.integer("word_embed_proj_dim", hidden)
    tied = keys.shared("tie_word_embeddings")
    is_tied = family.tied if tied is None else bool(tied)
    positions = 0
    if family.positions is not None:
        positions = (keys.integer("max_position_embeddings") + family.positions) * hidden
    return Decoder(
        heads=heads,
        hidden_size=hidden,
        vocab_size=vocab,
        layers=layers,
        norms=_norms(keys, family, hidden, num_layers),
        embedding=vocab * width,
        positions=positions,
        head=Weights() if is_tied else Weights(vocab * width, family.head_bias * vocab),
        around=Weights(2 * width * hidden) if width != hidden else Weights(),
        num_experts=count_experts(keys) if sparse else 0,
        num_experts_per_token=keys.integer("num_experts_per_tok") if sparse else 0,
    )


def _heads(keys: ConfigKeys, hidden: int) -> Heads:
    num_heads = keys.positive("num_attention_heads")
    num_kv_heads = keys.integer("num_key_value_heads", num_heads) or num_heads
    if keys.flag("multi_query"):
        num_kv_heads = 1
    if num_heads % num_kv_heads:
        raise DataError(
            f"{keys.name}: config.json: num_attention_heads: {num_heads} heads cannot share"
            f" {num_kv_heads} KV heads (num_key_value_heads): it must be a multiple of them"
        )
    return Heads(num_heads, num_kv_heads, keys.integer("head_dim", hidden // num_heads))


def _mixer(keys: ConfigKeys, family: Family, kind: str, hidden: int, heads: Heads) -> Block:
    match kind:
        case "none":
            return _NO_BLOCK
        case "linear":
            return delta_net(keys, hidden)
        case "mamba":
            return _state_space(keys, hidden)
        case "conv":
            kernel = keys.positive("conv_L_cache")
            return short_conv(hidden, kernel, bias=keys.flag("conv_bias"))
    if keys.value("kv_lora_rank") is not None:
        return latent_attention(keys, hidden, heads.num_heads)
    has_norm = family.qk_norm_key is None or keys.flag(family.qk_norm_key)
    return attention(
        hidden,
        heads,
        qkv_bias=_says(keys, family.qkv_bias),
        out_bias=_says(keys, family.out_bias),
        qk_norm=family.qk_norm if has_norm else "",
        gated=family.gated_attention,
        sinks=family.sinks,
        window=keys.positive("sliding_window") if kind == "sliding" else None,
    )


def _state_space(keys: ConfigKeys, hidden: int) -> Block:
    """Mamba or Mamba-2, under the key names of the family at hand."""
    is_plain = keys.model_type in STATE_SPACES
    prefix = "" if is_plain else "mamba_"
    if keys.model_type in ("mamba", "falcon_mamba", "jamba"):
        inner = keys.integer("mamba_expand" if prefix else "expand", 2) * hidden
        if is_plain:
            inner = keys.integer("intermediate_size", inner)
        rank = keys.value("mamba_dt_rank" if prefix else "time_step_rank")
        return mamba(
            hidden,
            inner,
            state=keys.positive("mamba_d_state" if prefix else "state_size"),
            kernel=keys.positive("mamba_d_conv" if prefix else "conv_kernel"),
            rank=rank if isinstance(rank, int) else -(-hidden // 16),
            conv_bias=keys.flag("mamba_conv_bias" if prefix else "use_conv_bias", True),
            bias=keys.flag("mamba_proj_bias" if prefix else "use_bias"),
            inner_norms=keys.model_type == "jamba",
        )
    if keys.model_type == "nemotron_h":
        num_heads = keys.positive("mamba_num_heads")
        return mamba2(
            hidden,
            num_heads * keys.positive("mamba_head_dim"),
            num_heads=num_heads,
            groups=keys.positive("n_groups"),
            state=keys.positive("ssm_state_size"),
            kernel=keys.positive("conv_kernel"),
            conv_bias=keys.flag("use_conv_bias", True),
            bias=keys.flag("use_bias"),
        )
    return mamba2(
        hidden,
        keys.integer("mamba_expand" if prefix else "expand", 2) * hidden,
        num_heads=keys.positive("mamba_n_heads" if prefix else "num_heads"),
        groups=keys.positive("mamba_n_groups" if prefix else "n_groups"),
        state=keys.positive("mamba_d_state" if prefix else "state_size"),
        kernel=keys.positive("mamba_d_conv" if prefix else "conv_kernel"),
        conv_bias=keys.flag("mamba_conv_bias" if prefix else "use_conv_bias", True),
        bias=keys.flag("mamba_proj_bias" if prefix else "use_bias"),
    )


def _feed(keys: ConfigKeys, family: Family, hidden: int, *, is_sparse: bool) -> Block:
    bias = _says(keys, family.mlp_bias)
    if not is_sparse:
        return feed_forward(hidden, _inner(keys, hidden), gated=family.gated, bias=bias)
    inner = keys.optional_integer("moe_intermediate_size") or keys.positive("intermediate_size")
    return experts(
        hidden,
        inner,
        num_experts=count_experts(keys),
        num_per_token=keys.integer("num_experts_per_tok"),
        shared_inner=_shared_inner(keys, family, inner),
        gated=family.gated,
        bias=family.expert_bias,
        router_bias=family.router_bias,
        shared_gate=family.shared_gate,
    )


def _shared_inner(keys: ConfigKeys, family: Family, inner: int) -> int:
    if family.shares == "number":
        return keys.integer("n_shared_experts", 0) * inner
    if family.shares == "size":
        return keys.integer("shared_expert_intermediate_size", 0)
    return keys.integer("shared_intermediate_size", 0)


def _inner(keys: ConfigKeys, hidden: int) -> int:
    """Size of a dense feed-forward network."""
    if keys.model_type == "granitemoehybrid":
        return keys.positive("shared_intermediate_size")
    inner = keys.integer("intermediate_size", 4 * hidden)
    if keys.model_type == "lfm2" and keys.flag("block_auto_adjust_ff_dim", True):
        multiple = keys.integer("block_multiple_of", 256)
        inner = int((keys.value("block_ffn_dim_multiplier") or 1) * (2 * inner // 3))
        inner = -(-inner // multiple) * multiple
    return inner


def _norms(keys: ConfigKeys, family: Family, hidden: int, num_layers: int) -> int:
    if not family.norm_weight:
        return 0
    shares_norm = keys.model_type == "stablelm" and keys.flag("use_parallel_residual")
    per_layer = 1 if shares_norm else family.norms
    count = per_layer * num_layers + family.embedding_norm
    has_final = family.final_norm and not keys.flag("_remove_final_layer_norm")
    return (count + has_final) * hidden * (2 if family.norm_bias else 1)


def _says(keys: ConfigKeys, value: bool | str) -> bool:
    return keys.flag(value) if isinstance(value, str) else value
