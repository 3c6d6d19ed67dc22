"""What a model's files say of its size, without reading a single weight.

A safetensors file begins with a table of its tensors: name, type, shape. An index beside several
files states their sum. Not all that is stored is loaded: the layers of a multi-token-prediction
head, an output matrix that is the embedding once more, masks that old checkpoints saved.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

INDEX: Final = "model.safetensors.index.json"
MAX_HEADER_BYTES: Final = 100 * 2**20
"""The limit of the format itself."""
_TOLERANCE: Final = 0.02
_TYPE_BITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("F64", "I64", "U64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F4",), 4),
}
_FLOATS: Final = frozenset(("F64", "F32", "F16", "BF16"))
_LAYER: Final = re.compile(r"^(?:(?:language_)?model\.|backbone\.)*layers\.(\d+)\.")
_NOT_WEIGHTS: Final = re.compile(r"\.attn\.(masked_)?bias$|\.rotary_emb\.inv_freq$|^mtp\.")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Tensors that an engine loads."""

    num_values: int
    num_bytes: int
    is_quantized: bool
    """Some tensors hold packed or small numbers; then `num_values` does not count weights."""
    source: str

    def agrees_with(self, num_params: int) -> bool:
        """Whether this is about the size of so many weights."""
        return abs(self.num_values - num_params) <= _TOLERANCE * num_params


def read_checkpoint(
    folder: Path, *, num_layers: int, is_tied: bool, stored_bytes: int
) -> Checkpoint | None:
    """The size of the safetensors files in a directory; None where there are none, or damaged.

    Where only the index is there its total counts; `stored_bytes` is then what one weight takes in
    the checkpoint (of a quantized one the number of values is not known: 0).
    """
    files = sorted(folder.glob("*.safetensors"))
    index = _read_json(folder / INDEX)
    weight_map = index.get("weight_map")
    if isinstance(weight_map, dict):
        files = [folder / name for name in sorted(set(map(str, weight_map.values())))]
    headers = [read_header(file) for file in files]
    if headers and all(header is not None for header in headers):
        tensors = {name: entry for header in headers for name, entry in (header or {}).items()}
        return _sum(tensors, num_layers=num_layers, is_tied=is_tied)
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if not isinstance(total, (int, float)):
        return None
    values = int(total) // stored_bytes if stored_bytes else 0
    return Checkpoint(values, int(total), not stored_bytes, INDEX)


def read_header(file: Path) -> dict[str, Any] | None:
    """The table of tensors of a safetensors file; None where it cannot be read."""
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if not 0 < size <= MAX_HEADER_BYTES:
                return None
            header = json.loads(stream.read(size))
    except (OSError, ValueError):
        return None
    if not isinstance(header, dict):
        return None
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def _sum(tensors: Mapping[str, Any], *, num_layers: int, is_tied: bool) -> Checkpoint | None:
    values = num_bits = 0
    is_quantized = False
    for kind, shape in _loaded(tensors, num_layers=num_layers, is_tied=is_tied):
        bits = _TYPE_BITS.get(kind)
        if bits is None:
            return None
        count = prod(shape)
        values += count
        num_bits += count * bits
        is_quantized |= kind not in _FLOATS
    return Checkpoint(values, num_bits // 8, is_quantized, "safetensors headers")


def _loaded(
    tensors: Mapping[str, Any], *, num_layers: int, is_tied: bool
) -> Iterator[tuple[str, list[int]]]:
    for name, entry in tensors.items():
        layer = _LAYER.search(name)
        is_beyond = layer is not None and int(layer[1]) >= num_layers
        is_copy = is_tied and name.endswith("lm_head.weight")
        if is_beyond or is_copy or _NOT_WEIGHTS.search(name):
            continue
        yield str(entry["dtype"]), list(entry["shape"])


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
