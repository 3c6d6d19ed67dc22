"""How many bytes a weight takes, and in which number format it is multiplied.

Quantization makes the matrices of the layers smaller and leaves the embedding, the output matrix
and the norms as they are. What a scheme stores beside the small numbers (a scale for each group of
weights, sometimes a zero point) is part of its size: AWQ with 4 bits and groups of 128 takes 4.16.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from batchgen.capacity.keys import ConfigKeys
from batchgen.errors import DataError

DTYPE_BYTES: Final[Mapping[str, int]] = {
    "float64": 8,
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
}
_KV_BITS: Final[Mapping[str, int]] = {
    "float16": 16,
    "bfloat16": 16,
    "fp8": 8,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "fp8_inc": 8,
}
_LONG_NAMES: Final[Mapping[str, str]] = {"float": "float32", "half": "float16"}
_SCALE_BITS: Final = 16


@dataclass(frozen=True, slots=True)
class Quantization:
    """A way to store matrices. `bits` are those of one weight, scales included."""

    name: str
    bits: float
    matmul_dtype: str | None = None
    """The format of the matrix products; None: that of the activations."""
    experts_only: bool = False


def weight_dtype(keys: ConfigKeys, given: str | None) -> str:
    """The type of the weights that are not quantized, as vLLM chooses it on a GPU.

    `auto` is the checkpoint's own type, except that float32 is loaded as bfloat16.
    """
    if given in (None, "auto"):
        stated = str(keys.shared("dtype") or "float32").removeprefix("torch.")
        given = "bfloat16" if stated in ("float32", "float64") else stated
    dtype = str(given)
    if dtype not in DTYPE_BYTES:
        raise DataError(f"{keys.name}: the bytes of dtype '{dtype}' are not known here")
    return _LONG_NAMES.get(dtype, dtype)


def kv_value_bits(keys: ConfigKeys, given: str | None, dtype: str) -> int:
    """Bits of one value in the KV cache; `auto` is the model's type, or what its checkpoint says.

    Raises DataError for a format whose scales are not known here.
    """
    name = given or "auto"
    if name == "auto":
        scheme = _section(keys).get("kv_cache_scheme")
        is_fp8 = isinstance(scheme, dict) and scheme.get("num_bits") == 8
        return 8 if is_fp8 else 8 * DTYPE_BYTES[dtype]
    if name not in _KV_BITS:
        raise DataError(
            f"{keys.name}: how many bytes kv_cache_dtype '{name}' takes is not known here; known:"
            f" auto, {', '.join(_KV_BITS)}"
        )
    return _KV_BITS[name]


def read_quantization(keys: ConfigKeys, given: str | None) -> Quantization | None:
    """How the layers' matrices are stored; None: like everything else.

    `given` is vLLM's argument, which counts where the checkpoint itself is not quantized. Raises
    DataError for a method whose size is not known here.
    """
    section = _section(keys)
    method = str(section.get("quant_method") or given or "").lower()
    if not method:
        return None
    found = _by_checkpoint(method, section) if section else _at_load_time(method)
    if found is None:
        raise DataError(
            f"{keys.name}: how many bytes quantization '{method}' takes is not known here; with the"
            " model's files at hand (model.name a directory) they tell"
        )
    return found


def _section(keys: ConfigKeys) -> Mapping[str, Any]:
    section = keys.shared("quantization_config")
    if section is not None and not isinstance(section, Mapping):
        raise DataError(f"{keys.name}: config.json: quantization_config: must be an object")
    return section or {}


def _at_load_time(method: str) -> Quantization | None:
    """What vLLM makes of a checkpoint that is not quantized."""
    if method.startswith("fp8"):
        return Quantization(method, 8, "fp8")
    if method == "experts_int8":
        return Quantization(method, 8, experts_only=True)
    return Quantization(method, 4 + 32 / 64) if method == "bitsandbytes" else None


def _by_checkpoint(method: str, section: Mapping[str, Any]) -> Quantization | None:
    match method:
        case "awq" | "gptq" | "gptq_marlin" | "awq_marlin":
            bits = _number(section.get("bits") or section.get("w_bit"))
            group = _number(section.get("group_size") or section.get("q_group_size"))
            return None if bits is None else Quantization(method, _grouped(bits, group, bits))
        case "fp8" | "fbgemm_fp8":
            block = section.get("weight_block_size")
            scales = (
                32 / (block[0] * block[1]) if isinstance(block, list) and len(block) == 2 else 0
            )
            return Quantization(method, 8 + scales, "fp8")
        case "bitsandbytes":
            is_small = section.get("load_in_4bit") or section.get("_load_in_4bit")
            is_double = section.get("bnb_4bit_use_double_quant")
            return Quantization(method, (4 + (0.127 if is_double else 0.5)) if is_small else 8)
        case "mxfp4":
            return Quantization(method, 4 + 8 / 32, experts_only=True)
        case "modelopt" | "modelopt_fp4":
            return _modelopt(str(section.get("quant_algo") or "").upper())
        case "compressed-tensors":
            return _compressed(section)
    return None


def _modelopt(algorithm: str) -> Quantization | None:
    known = {
        "FP8": Quantization("modelopt fp8", 8, "fp8"),
        "NVFP4": Quantization("modelopt nvfp4", 4 + 8 / 16, "fp4"),
    }
    return known.get(algorithm)


def _compressed(section: Mapping[str, Any]) -> Quantization | None:
    """compressed-tensors: groups of modules, each with a scheme; several schemes are refused."""
    groups = section.get("config_groups")
    if not isinstance(groups, Mapping):
        return None
    found = {_compressed_group(group) for group in groups.values()}
    return next(iter(found)) if len(found) == 1 else None


def _compressed_group(group: Any) -> Quantization | None:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    bits, size = _number(weights.get("num_bits")), _number(weights.get("group_size"))
    if bits is None:
        return None
    is_float = weights.get("type") == "float"
    dtype = None
    if isinstance(group.get("input_activations"), Mapping):
        dtype = {(True, 8): "fp8", (False, 8): "int8", (True, 4): "fp4"}.get((is_float, bits))
    scale_bits = 8 if is_float and bits == 4 else _SCALE_BITS
    zero_bits = 0 if weights.get("symmetric", True) else bits
    name = f"compressed-tensors {'float' if is_float else 'int'}{bits}"
    return Quantization(name, _grouped(bits, size, zero_bits, scale_bits), dtype)


def _grouped(bits: int, group: int | None, zero_bits: int, scale_bits: int = _SCALE_BITS) -> float:
    """Bits of a weight with its share of the group's scale and zero point."""
    return bits + (scale_bits + zero_bits) / group if group and group > 0 else float(bits)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
