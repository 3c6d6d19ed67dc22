"""The bytes of a model's weights, as an engine holds them and as its steps read them.

Tables that are looked up are stored and never read whole; routed experts are read only where a
token is sent to them. So three sums are kept apart: what every step reads, all experts, and
everything. Where the model's files are at hand they say how large it is, and the config only how
that is divided.
"""

from dataclasses import dataclass
from math import ceil

from batchgen.capacity.checkpoint import Checkpoint
from batchgen.capacity.keys import ConfigKeys
from batchgen.capacity.layers import Decoder
from batchgen.capacity.quantization import (
    DTYPE_BYTES,
    Quantization,
    read_quantization,
    weight_dtype,
)
from batchgen.errors import DataError


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """Weights in memory."""

    num_params: int
    num_bytes: int
    shared_bytes: int
    """What every step reads: all that is multiplied with, routed experts left out."""
    expert_bytes: int
    """All routed experts."""
    dtype: str
    """Of what is not quantized, and of activations."""
    matmul_dtype: str
    description: str
    """How they are stored, and where their size is from."""


def store_weights(
    keys: ConfigKeys,
    decoder: Decoder,
    found: Checkpoint | None,
    *,
    dtype: str | None,
    quantization: str | None,
) -> StoredWeights:
    """The bytes of a decoder's weights; `dtype` and `quantization` are vLLM's arguments.

    A checkpoint that is not quantized is loaded as `dtype`, whatever it is stored as; the numbers
    of a quantized one stay as they are. Raises DataError for what is not known here.
    """
    loaded = weight_dtype(keys, dtype)
    scheme = _scheme(keys, quantization, found)
    plain = DTYPE_BYTES[loaded]
    small = scheme.bits / 8 if scheme else plain
    dense = plain if scheme and scheme.experts_only else small
    always, experts = decoder.always, decoder.experts
    expert_bytes = experts.linear * small + experts.other * plain
    always_bytes = always.linear * dense + always.other * plain
    head_bytes = (decoder.head.total or decoder.embedding) * plain
    tables = decoder.embedding + decoder.positions + decoder.head.total
    num_bytes = always_bytes + expert_bytes + tables * plain
    num_params, source, scale = decoder.num_params, "computed from config.json", 1.0
    if found is not None and found.is_quantized:
        source, scale = found.source, found.num_bytes / num_bytes
    elif found is not None and found.num_values:
        num_params = found.num_values
        if scheme is None:
            source, num_bytes = found.source, num_params * plain
    return StoredWeights(
        num_params=num_params,
        num_bytes=ceil(num_bytes * scale),
        shared_bytes=ceil((always_bytes + head_bytes) * scale),
        expert_bytes=ceil(expert_bytes * scale),
        dtype=loaded,
        matmul_dtype=(scheme.matmul_dtype if scheme else None) or loaded,
        description=f"{_in_words(scheme, loaded, scale)}, {source}",
    )


def _scheme(keys: ConfigKeys, given: str | None, found: Checkpoint | None) -> Quantization | None:
    """As `read_quantization`; an unknown method is no error where the files say their size."""
    try:
        return read_quantization(keys, given)
    except DataError:
        if found is None or not found.is_quantized:
            raise
        return Quantization("quantized", 8.0)


def _in_words(scheme: Quantization | None, dtype: str, scale: float) -> str:
    """`scale`: what the files hold ÷ what the scheme makes."""
    return (
        dtype if scheme is None else f"{scheme.name} ({scheme.bits * scale:.3g} bits) and {dtype}"
    )
