"""How large a model is: weights, KV cache, arithmetic. All of it follows from its config.json.

Three numbers decide what a machine can do with a model. The bytes of its weights, which every
decode step reads. The KV cache bytes of a token, which decide how many sequences fit beside the
weights:

    2 (key and value) x layers x KV heads x head dimension x bytes of a value

for OPT-13B in 16 bits 2 x 40 x 40 x 128 x 2 = 819,200 bytes, so that 32 sequences of 2,000
tokens take 52 GB. And the operations of a token, about two for each weight that it meets.
Grouped-query attention shares KV heads, latent attention caches one small vector, a sliding window
forgets, a recurrence keeps one state: `Geometry` adds it up layer by layer.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from batchgen.capacity.blocks import Memory
from batchgen.capacity.checkpoint import Checkpoint, read_checkpoint
from batchgen.capacity.families import FAMILIES, Family, family_of
from batchgen.capacity.hub import find_model_folder
from batchgen.capacity.keys import ConfigKeys
from batchgen.capacity.layers import Decoder, read_decoder
from batchgen.capacity.quantization import DTYPE_BYTES, kv_value_bits
from batchgen.capacity.weights import StoredWeights, store_weights
from batchgen.config.models import ModelConfig
from batchgen.errors import DataError

_PLAIN_DECODER: Final = Family()
_OTHER_PARTS: Final = ("vision_config", "audio_config")


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """What each of `num_layers` alike layers remembers of one sequence."""

    num_layers: int
    kind: str
    """`full`, `sliding`, `latent` or `state`."""
    bytes_per_token: float = 0.0
    window: int | None = None
    state_bytes: int = 0
    shards: int = 1
    flops_per_pair: int = 0
    state_flops: int = 0

    def bytes_of(self, num_tokens: int, block_tokens: int, num_devices: int) -> float:
        """Of one sequence in all these layers, on one of `num_devices`."""
        held = _blocks(num_tokens, block_tokens)
        if self.window is not None:
            held = min(held, _blocks(self.window - 1, block_tokens) + block_tokens)
        whole = self.bytes_per_token * held + self.state_bytes
        return self.num_layers * whole / min(num_devices, self.shards)

    def flops(self, context: float) -> float:
        """Of one token against so many before it."""
        seen = context if self.window is None else min(context, self.window)
        return self.num_layers * (self.flops_per_pair * seen + self.state_flops)


@dataclass(frozen=True, slots=True)
class Geometry:
    """The size of a model as an engine holds it. Bytes are those of one whole copy."""

    name: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_params: int
    """Everything that is stored."""
    num_active_params: int
    """What one token is multiplied with: of a mixture of experts those that it is routed to; the
    output matrix, but no table that is looked up."""
    weight_bytes: int
    """In memory, with dtype and quantization."""
    weight_dtype_bytes: float
    """Of one weight, on average."""
    kv_bytes_per_token: int
    """Over all attention layers, those with a window included while they are inside it."""
    attention: str = "MHA"
    """`MHA`, `GQA`, `MQA`, `MLA` or `none`; hybrid models add what else they have."""
    dtype: str = "bfloat16"
    """Of activations, and of weights that are not quantized."""
    matmul_dtype: str = "bfloat16"
    """The format of the matrix products: `fp8`, `int8` or `fp4` where both sides are quantized."""
    weights: str = ""
    """How the weights are stored, and where their size is from, in words."""
    kv_bits: int = 16
    memories: tuple[LayerMemory, ...] = ()
    """By kind of layer; empty: full attention everywhere."""
    num_experts: int = 0
    num_experts_per_token: int = 0
    expert_bytes: int = 0
    """All routed experts."""
    shared_bytes: int | None = None
    """What every step reads, the routed experts left out; None: `num_active_params` of weights."""
    feed_size: int = 0
    """Values that a token becomes in the widest feed-forward network."""
    max_model_len: int | None = None
    """Tokens that the model was made for; None where its config does not say."""
    notes: tuple[str, ...] = ()
    """What is not counted, or does not agree."""

    def kv_bytes(self, num_tokens: int, *, block_tokens: int = 1, num_devices: int = 1) -> int:
        """What one sequence of this length takes, in whole blocks of `block_tokens`.

        On one of `num_devices` of a tensor-parallel group: KV heads are dealt out, and where there
        are more devices than KV heads each holds at least one; latent attention is not divided.
        """
        if not self.memories:
            held = self.kv_bytes_per_token * _blocks(num_tokens, block_tokens)
            return math.ceil(held / min(num_devices, self.num_kv_heads or 1))
        return math.ceil(
            sum(memory.bytes_of(num_tokens, block_tokens, num_devices) for memory in self.memories)
        )

    def attention_flops(self, context: float) -> float:
        """Operations of one token against `context` tokens, over all layers."""
        if not self.memories:
            return 4 * self.num_layers * self.num_heads * self.head_dim * context
        return sum(memory.flops(context) for memory in self.memories)

    def weight_bytes_read(self, num_tokens: float) -> float:
        """Bytes of weights that one step with so many tokens reads.

        All that is multiplied with, and of a mixture of experts those that at least one token is
        sent to: with even routing 1 - (1 - k/E)^n of them.
        """
        shared = self.shared_bytes
        if shared is None:
            shared = round(self.num_active_params * self.weight_dtype_bytes)
        if not self.num_experts:
            return shared
        missed = math.pow(1 - self.num_experts_per_token / self.num_experts, num_tokens)
        return shared + self.expert_bytes * (1 - missed)


def read_geometry(
    config: Mapping[str, Any],
    *,
    name: str,
    dtype: str | None = None,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    ssm_cache_dtype: str | None = None,
    folder: Path | None = None,
) -> Geometry:
    """The geometry that a config.json describes; the arguments are vLLM's, None is its `auto`.

    `folder` may hold the model's safetensors files or their index, which then say how large the
    weights are. Raises DataError for a family that is not known, and for a config that does not
    say enough.
    """
    keys = ConfigKeys(config, name=name)
    family = family_of(keys.model_type)
    if keys.flag("is_encoder_decoder"):
        raise DataError(f"{name}: an encoder-decoder model, whose capacity cannot be planned here")
    if family is None and folder is None:
        raise _unknown(keys)
    known = family or _PLAIN_DECODER
    keys = keys.with_defaults(known.defaults)
    decoder = read_decoder(keys, known)
    found = _find_files(keys, decoder, folder)
    if family is None:
        _check_unknown(keys, decoder, found)
    stored = store_weights(keys, decoder, found, dtype=dtype, quantization=quantization)
    ssm_dtype = ssm_cache_dtype if ssm_cache_dtype not in (None, "auto") else None
    return _geometry(
        keys,
        decoder,
        stored,
        kv_bits=kv_value_bits(keys, kv_cache_dtype, stored.dtype),
        state_bytes=DTYPE_BYTES[ssm_dtype or _state_dtype(keys, known) or stored.dtype],
        notes=_notes(keys, decoder, found, is_guess=family is None),
    )


def load_geometry(model: ModelConfig, *, dtype: str | None = None) -> Geometry:
    """The geometry of a job's model, from its directory or the hub's cache on this machine.

    `dtype` is what the engine runs with, where that is known and not what the job says. Raises
    JobFileError where there is no config.json, DataError where it cannot be used.
    """
    folder = find_model_folder(model.name, model.revision)
    config = read_config(folder / "config.json")
    return geometry_of(model, config, name=model.name, folder=folder, dtype=dtype)


def geometry_of(
    model: ModelConfig,
    config: Mapping[str, Any],
    *,
    name: str,
    folder: Path | None,
    dtype: str | None = None,
) -> Geometry:
    """As `read_geometry`, with the engine arguments of a job's model section."""
    extra = model.extra
    overrides = extra.get("hf_overrides")
    return read_geometry(
        {**config, **overrides} if isinstance(overrides, dict) else config,
        name=name,
        dtype=dtype or extra.get("dtype"),
        quantization=extra.get("quantization"),
        kv_cache_dtype=extra.get("kv_cache_dtype"),
        ssm_cache_dtype=extra.get("mamba_ssm_cache_dtype"),
        folder=folder,
    )


def read_config(path: Path) -> dict[str, Any]:
    """A config.json. Raises DataError where it cannot be read or is no JSON object."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise DataError(f"{path}: no such file; give the config.json of a model") from exc
    except (OSError, ValueError) as exc:
        raise DataError(f"{path}: cannot be read as a model's config.json: {exc}") from exc
    if not isinstance(config, dict):
        raise DataError(f"{path}: is no model's config.json: it holds no JSON object")
    return config


def _find_files(keys: ConfigKeys, decoder: Decoder, folder: Path | None) -> Checkpoint | None:
    if folder is None:
        return None
    is_quantized = keys.shared("quantization_config") is not None
    stated = str(keys.shared("dtype") or "float32").removeprefix("torch.")
    return read_checkpoint(
        folder,
        num_layers=len(decoder.layers),
        is_tied=decoder.is_tied,
        stored_bytes=0 if is_quantized else DTYPE_BYTES.get(stated, 0),
    )


def _check_unknown(keys: ConfigKeys, decoder: Decoder, found: Checkpoint | None) -> None:
    """Refuse a family that is not in the table, unless the files prove that it is a plain one."""
    if found is None or found.is_quantized or not found.agrees_with(decoder.num_params):
        raise _unknown(keys)


def _unknown(keys: ConfigKeys) -> DataError:
    return DataError(
        f"{keys.name}: config.json: model_type '{keys.model_type or 'not set'}' is not among those"
        f" whose weights can be counted here ({', '.join(sorted(FAMILIES))})"
    )


def _state_dtype(keys: ConfigKeys, family: Family) -> str | None:
    for key in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype"):
        if keys.value(key) in DTYPE_BYTES:
            return str(keys.value(key))
    return family.ssm_dtype


def _geometry(
    keys: ConfigKeys,
    decoder: Decoder,
    stored: StoredWeights,
    *,
    kv_bits: int,
    state_bytes: int,
    notes: tuple[str, ...],
) -> Geometry:
    heads = decoder.heads
    memories = _memories(
        decoder, kv_bits=kv_bits, conv_bytes=DTYPE_BYTES[stored.dtype], state_bytes=state_bytes
    )
    per_token = sum(memory.num_layers * memory.bytes_per_token for memory in memories)
    return Geometry(
        name=keys.name,
        num_layers=len(decoder.layers),
        hidden_size=decoder.hidden_size,
        vocab_size=decoder.vocab_size,
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        num_params=stored.num_params,
        num_active_params=decoder.num_active_params,
        weight_bytes=stored.num_bytes,
        weight_dtype_bytes=stored.num_bytes / stored.num_params,
        kv_bytes_per_token=math.ceil(per_token),
        attention=_attention_name(decoder),
        dtype=stored.dtype,
        matmul_dtype=stored.matmul_dtype,
        weights=stored.description,
        kv_bits=kv_bits,
        memories=memories,
        num_experts=decoder.num_experts,
        num_experts_per_token=decoder.num_experts_per_token,
        expert_bytes=stored.expert_bytes,
        shared_bytes=stored.shared_bytes,
        feed_size=decoder.feed_size,
        max_model_len=keys.optional_integer("max_position_embeddings"),
        notes=notes,
    )


def _memories(
    decoder: Decoder, *, kv_bits: int, conv_bytes: int, state_bytes: int
) -> tuple[LayerMemory, ...]:
    kinds: Counter[Memory] = Counter(mixer.memory for mixer, _ in decoder.layers)
    return tuple(
        LayerMemory(
            num_layers=count,
            kind=memory.kind,
            bytes_per_token=memory.values_per_token * kv_bits / 8,
            window=memory.window,
            state_bytes=memory.conv_values * conv_bytes + memory.state_values * state_bytes,
            shards=memory.shards,
            flops_per_pair=memory.flops_per_pair,
            # Each value of a state is multiplied once to be renewed and once to be read.
            state_flops=4 * memory.state_values,
        )
        for memory, count in kinds.items()
        if memory.kind != "none"
    )


def _attention_name(decoder: Decoder) -> str:
    kinds = {mixer.memory.kind for mixer, _ in decoder.layers}
    names = []
    if "latent" in kinds:
        names.append("MLA")
    elif kinds & {"full", "sliding"}:
        heads = decoder.heads
        is_single = heads.num_kv_heads == 1 and heads.num_heads > 1
        is_grouped = heads.num_kv_heads < heads.num_heads
        names.append("MQA" if is_single else "GQA" if is_grouped else "MHA")
    if "sliding" in kinds:
        names.append("sliding window")
    if "state" in kinds:
        names.append("recurrent state")
    return ", ".join(names) or "none"


def _notes(
    keys: ConfigKeys, decoder: Decoder, found: Checkpoint | None, *, is_guess: bool
) -> tuple[str, ...]:
    notes = []
    if is_guess:
        notes.append(
            f"model_type '{keys.model_type}' is not known here; its files are as large as those of"
            " a plain decoder, and it is taken for one"
        )
    others = [part for part in _OTHER_PARTS if isinstance(keys.whole.get(part), dict)]
    if others and found is None:
        notes.append(f"only the language part is counted, without {', '.join(others)}")
    is_plain = found is not None and not found.is_quantized and not others
    if found is not None and is_plain and not found.agrees_with(decoder.num_params):
        notes.append(
            f"the files hold {found.num_values:,} weights, config.json makes"
            f" {decoder.num_params:,}: some part of the model is not known here"
        )
    return tuple(notes)


def _blocks(num_tokens: int, block_tokens: int) -> int:
    return -(-max(0, num_tokens) // block_tokens) * block_tokens
