"""The blocks that decoders are built of: how many weights each has, and what it remembers.

A layer is a mixer (some kind of attention, or a recurrence), which is where tokens see each other,
and a feed-forward network, where each token is worked on alone. A mixer remembers the sequence: an
attention keeps a key and a value of every token (the KV cache, which grows with the sequence), a
recurrence keeps one state of fixed size. `tests/capacity/test_architectures.py` counts the same
models with their reference implementation.
"""

from dataclasses import dataclass
from typing import Final

from batchgen.capacity.keys import ConfigKeys

NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class Weights:
    """Numbers of weights. `linear`: of matrix products, those that quantization makes smaller."""

    linear: int = 0
    other: int = 0
    """Norms, biases, convolutions, routers: kept as they are."""

    def __add__(self, more: "Weights") -> "Weights":
        return Weights(self.linear + more.linear, self.other + more.other)

    def __mul__(self, times: int) -> "Weights":
        return Weights(self.linear * times, self.other * times)

    @property
    def total(self) -> int:
        """All of them."""
        return self.linear + self.other


@dataclass(frozen=True, slots=True)
class Memory:
    """What one mixer remembers of one sequence, in values, and what looking at it costs."""

    kind: str = "none"
    """`full`, `sliding`, `latent` or `state`."""
    values_per_token: int = 0
    window: int | None = None
    """Only the last so many tokens are kept."""
    shards: int = 1
    """Devices that this can be spread over, each holding a part of its own (KV heads)."""
    flops_per_pair: int = 0
    """Of one token looking at one token of its context."""
    conv_values: int = 0
    state_values: int = 0
    """Of the state of a recurrence, which may have a type of its own; and of its convolution."""


@dataclass(frozen=True, slots=True)
class Block:
    """A mixer or a feed-forward network."""

    weights: Weights = Weights()
    experts: Weights = Weights()
    """Of all routed experts, of which a token passes some."""
    memory: Memory = Memory()
    width: int = 0
    """Of a feed-forward network: values that a token becomes in it."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a model's attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


def attention(
    hidden: int,
    heads: Heads,
    *,
    qkv_bias: bool,
    out_bias: bool,
    qk_norm: str,
    gated: bool = False,
    sinks: bool = False,
    window: int | None = None,
) -> Block:
    """Attention with a key and a value per KV head: MHA, GQA (arXiv:2305.13245) or MQA.

    `qk_norm`: `head` (one norm of `head_dim` for all heads), `head_and_bias`, `full` (one over all
    heads) or none; `gated`: the query projection also makes a gate of the output.
    """
    query = heads.num_heads * heads.head_dim
    key = heads.num_kv_heads * heads.head_dim
    projected = query * (2 if gated else 1) + 2 * key
    norms = {
        "head": 2 * heads.head_dim,
        "head_and_bias": 4 * heads.head_dim,
        "full": query + key,
    }.get(qk_norm, 0)
    other = qkv_bias * projected + out_bias * hidden + norms + sinks * heads.num_heads
    return Block(
        Weights(hidden * projected + query * hidden, other),
        memory=Memory(
            "full" if window is None else "sliding",
            values_per_token=2 * key,
            window=window,
            shards=heads.num_kv_heads,
            flops_per_pair=4 * query,
        ),
    )


def latent_attention(keys: ConfigKeys, hidden: int, num_heads: int) -> Block:
    """Multi-head latent attention: one small vector per token stands for all keys and values.

    Cached are `kv_lora_rank` + `qk_rope_head_dim` values per token and layer (DeepSeek-V2,
    arXiv:2405.04434). They cannot be split by heads, so every device of a tensor-parallel group
    holds all of them. The arithmetic is that of keys and values once they are unfolded, as in
    prefill; decoding on the folded form takes some three times as much.
    """
    rank, rope = keys.positive("kv_lora_rank"), keys.positive("qk_rope_head_dim")
    nope, value = keys.positive("qk_nope_head_dim"), keys.positive("v_head_dim")
    query_rank = keys.optional_integer("q_lora_rank")
    query = num_heads * (nope + rope)
    linear = hidden * (rank + rope) + rank * num_heads * (nope + value) + num_heads * value * hidden
    other = rank
    if query_rank:
        linear += hidden * query_rank + query_rank * query
        other += query_rank
    else:
        linear += hidden * query
    if keys.flag("attention_bias"):
        other += (query_rank or 0) + rank + rope + hidden
    return Block(
        Weights(linear, other),
        memory=Memory(
            "latent",
            values_per_token=rank + rope,
            flops_per_pair=2 * num_heads * (nope + rope + value),
        ),
    )


def delta_net(keys: ConfigKeys, hidden: int) -> Block:
    """Gated delta net, the linear attention of Qwen3-Next (arXiv:2412.06464)."""
    key_heads, value_heads = (
        keys.positive("linear_num_key_heads"),
        keys.positive("linear_num_value_heads"),
    )
    key_dim, value_dim = (
        keys.positive("linear_key_head_dim"),
        keys.positive("linear_value_head_dim"),
    )
    kernel = keys.positive("linear_conv_kernel_dim")
    key, value = key_heads * key_dim, value_heads * value_dim
    channels = 2 * key + value
    linear = hidden * (channels + value + 2 * value_heads) + value * hidden
    other = channels * kernel + 2 * value_heads + value_dim
    return Block(
        Weights(linear, other),
        memory=Memory(
            "state",
            shards=key_heads,
            conv_values=channels * (kernel - 1),
            state_values=value_heads * value_dim * key_dim,
        ),
    )


def mamba(
    hidden: int,
    inner: int,
    *,
    state: int,
    kernel: int,
    rank: int,
    conv_bias: bool,
    bias: bool,
    inner_norms: bool,
) -> Block:
    """A selective state space (Mamba, arXiv:2312.00752); `inner_norms` are those of Jamba."""
    linear = hidden * 2 * inner + inner * (rank + 2 * state) + rank * inner + inner * hidden
    other = inner * kernel + conv_bias * inner + inner + inner * state + inner
    other += bias * (2 * inner + hidden) + inner_norms * (rank + 2 * state)
    return Block(
        Weights(linear, other),
        memory=Memory(
            "state", shards=inner, conv_values=inner * (kernel - 1), state_values=inner * state
        ),
    )


def mamba2(
    hidden: int,
    inner: int,
    *,
    num_heads: int,
    groups: int,
    state: int,
    kernel: int,
    conv_bias: bool,
    bias: bool,
) -> Block:
    """The state space of Mamba-2 (arXiv:2405.21060), with several heads."""
    channels = inner + 2 * groups * state
    projected = inner + channels + num_heads
    linear = hidden * projected + inner * hidden
    other = channels * kernel + conv_bias * channels + 3 * num_heads + inner
    other += bias * (projected + hidden)
    return Block(
        Weights(linear, other),
        memory=Memory(
            "state",
            shards=num_heads,
            conv_values=channels * (kernel - 1),
            state_values=inner * state,
        ),
    )


def short_conv(hidden: int, kernel: int, *, bias: bool) -> Block:
    """The gated short convolution of LFM2."""
    return Block(
        Weights(hidden * 3 * hidden + hidden * hidden, hidden * kernel + bias * 5 * hidden),
        memory=Memory("state", shards=hidden, conv_values=hidden * (kernel - 1)),
    )


def feed_forward(hidden: int, inner: int, *, gated: bool, bias: bool) -> Block:
    """A feed-forward network: up and down, and a gate beside up where it is `gated`."""
    num_up = 2 if gated else 1
    weights = Weights((num_up + 1) * hidden * inner, bias * (num_up * inner + hidden))
    return Block(weights, width=inner)


def experts(
    hidden: int,
    inner: int,
    *,
    num_experts: int,
    num_per_token: int,
    shared_inner: int,
    gated: bool = True,
    bias: bool = False,
    router_bias: bool = False,
    shared_gate: bool = False,
) -> Block:
    """A mixture of experts: a router, `num_experts` networks, and one that all tokens pass."""
    router = Weights(0, hidden * num_experts + router_bias * num_experts)
    one = feed_forward(hidden, inner, gated=gated, bias=bias).weights
    always = router
    if shared_inner:
        always += feed_forward(hidden, shared_inner, gated=gated, bias=False).weights
        always += Weights(0, shared_gate * hidden)
    width = num_per_token * inner + shared_inner
    return Block(always, experts=one * num_experts, width=width)
