"""What fits into a device: weights, a step's working memory, and the rest is KV cache.

The KV cache over what one sequence takes is the number of sequences that run at once. An engine
hands the cache out in blocks, so a sequence takes whole blocks; and it keeps some memory for
itself, so all of a device is never usable. Counted is a sequence with its whole completion: while
completions grow a few more run, until the engine has to take one back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

from batchgen.capacity.geometry import Geometry
from batchgen.capacity.quantization import DTYPE_BYTES

DEFAULT_UTILIZATION: Final = 0.92
"""vLLM's default for `gpu_memory_utilization` (0.32)."""
FIXED_WORKSPACE_BYTES: Final = 1.5e9
"""The driver's context, the communication library and captured graphs, about."""
MOST_DEVICES: Final = 1024
GPU_BLOCK_TOKENS: Final = 16
_LARGE_BYTES: Final = 70 * 2**30


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What of vLLM's settings decides how much fits. Bytes are those of one device."""

    block_tokens: int
    """Tokens of one KV block: 16 on GPUs, 128 on CPUs."""
    max_num_seqs: int
    max_num_batched_tokens: int
    memory_share: float = DEFAULT_UTILIZATION
    """`gpu_memory_utilization`."""
    kv_cache_bytes: int | None = None
    """A fixed size of the KV cache; None: what is left."""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    prefix_caching: bool = True
    has_workspace: bool = True
    """Whether a step's working memory comes out of the same memory."""

    @property
    def num_devices(self) -> int:
        """Devices that share one copy of the model."""
        return self.tensor_parallel * self.pipeline_parallel


def gpu_limits(
    extra: Mapping[str, Any],
    *,
    max_num_seqs: int | None,
    max_model_len: int | None,
    memory_bytes: int,
    device_name: str = "",
) -> EngineLimits:
    """vLLM's settings on a GPU, as a job's `model.extra` and vLLM's own defaults make them.

    The defaults are those of vLLM 0.32 for its `LLM` class: by the device's memory (an A100 counts
    as small), and doubled in throughput mode, which batchgen asks for.
    """
    is_large = memory_bytes >= _LARGE_BYTES and not device_name.upper().startswith("A100")
    factor = 2 if extra.get("performance_mode", "throughput") == "throughput" else 1
    slots = max_num_seqs or (1024 if is_large else 256) * factor
    tokens = extra.get("max_num_batched_tokens")
    if not isinstance(tokens, int):
        tokens = (16384 if is_large else 8192) * factor
        tokens = min(tokens, slots * max_model_len) if max_model_len else tokens
    kv_cache_bytes = extra.get("kv_cache_memory_bytes")
    return EngineLimits(
        block_tokens=extra.get("block_size") or GPU_BLOCK_TOKENS,
        max_num_seqs=slots if max_num_seqs else min(slots, tokens),
        max_num_batched_tokens=tokens,
        memory_share=extra.get("gpu_memory_utilization") or DEFAULT_UTILIZATION,
        kv_cache_bytes=kv_cache_bytes if isinstance(kv_cache_bytes, int) else None,
        tensor_parallel=extra.get("tensor_parallel_size") or 1,
        pipeline_parallel=extra.get("pipeline_parallel_size") or 1,
        prefix_caching=extra.get("enable_prefix_caching") is not False,
    )


@dataclass(frozen=True, slots=True)
class Sequences:
    """What enters the engine, by a sample: prompt and output tokens of each sequence."""

    prompts: Sequence[int]
    outputs: Sequence[float]

    @property
    def prompt_mean(self) -> float:
        """Tokens of a prompt; 0 without sequences."""
        return sum(self.prompts) / len(self.prompts) if self.prompts else 0.0

    @property
    def output_mean(self) -> float:
        """Tokens of a completion; 0 without sequences."""
        return sum(self.outputs) / len(self.outputs) if self.outputs else 0.0


@dataclass(frozen=True, slots=True)
class Fit:
    """How one replica's memory is used. Bytes are those of one device."""

    usable_bytes: int | None
    """What the engine may use of the device; None where only the KV cache is given."""
    weight_bytes: int
    workspace_bytes: int
    """What a step works in, and what the driver takes: an estimate."""
    kv_cache_bytes: int
    """0 where weights and workspace leave nothing."""
    kv_cache_tokens: int | None
    """None for a model that keeps no KV cache."""
    kv_bytes_per_sequence: float | None
    """Of one sequence with its whole completion, averaged over the sample, in whole blocks."""
    max_concurrent_sequences: int | None
    """Sequences of the corpus's lengths that the KV cache holds at once."""
    max_concurrent_at_max_len: int | None
    """Sequences of the greatest length that it holds at once."""


def fit_memory(
    geometry: Geometry,
    memory_bytes: int | None,
    limits: EngineLimits,
    sequences: Sequences,
    *,
    max_model_len: int | None,
) -> Fit:
    """How many sequences fit; `memory_bytes` of one device, None where the KV cache is given."""
    weights = ceil(geometry.weight_bytes / limits.num_devices)
    workspace = workspace_bytes(geometry, limits) if limits.has_workspace else 0
    usable = None if memory_bytes is None else round(memory_bytes * limits.memory_share)
    free = limits.kv_cache_bytes
    if free is None:
        free = max(0, (usable or 0) - weights - workspace)
    per_token = _device_bytes(geometry, 1, limits, block_tokens=1)
    mean = _mean_bytes(geometry, limits, sequences)
    longest = None
    if max_model_len is not None:
        longest = _device_bytes(geometry, max_model_len, limits, block_tokens=limits.block_tokens)
    return Fit(
        usable_bytes=usable,
        weight_bytes=weights,
        workspace_bytes=workspace,
        kv_cache_bytes=free,
        kv_cache_tokens=int(free / per_token) if geometry.kv_bytes_per_token else None,
        kv_bytes_per_sequence=mean,
        max_concurrent_sequences=None if not mean else int(free / mean),
        max_concurrent_at_max_len=None if not longest else int(free / longest),
    )


def workspace_bytes(geometry: Geometry, limits: EngineLimits) -> int:
    """What a step needs beside weights and KV cache, about, on one device.

    Activations of a full step of `max_num_batched_tokens` (residual stream and the widest
    feed-forward block), or the logits of all slots in float32 where these are larger.
    """
    return ceil(FIXED_WORKSPACE_BYTES + max(_step_bytes(geometry, limits)))


def workspace_key(geometry: Geometry, limits: EngineLimits) -> tuple[str, int]:
    """The setting that decides about `workspace_bytes`, as a key of the job, and its value."""
    activations, logits = _step_bytes(geometry, limits)
    if logits >= activations:
        return "model.max_num_seqs", limits.max_num_seqs
    return "model.extra.max_num_batched_tokens", limits.max_num_batched_tokens


def _step_bytes(geometry: Geometry, limits: EngineLimits) -> tuple[float, float]:
    """Activations and logits of a full step."""
    value_bytes = DTYPE_BYTES.get(geometry.dtype, 2)
    width = 2 * geometry.hidden_size + 3 * geometry.feed_size / limits.tensor_parallel
    activations = limits.max_num_batched_tokens * width * value_bytes
    logits = 8 * limits.max_num_seqs * geometry.vocab_size / limits.tensor_parallel
    return activations, logits


def devices_needed(
    geometry: Geometry, memory_bytes: int, limits: EngineLimits, num_tokens: int
) -> int | None:
    """The fewest devices, a power of two, that hold the model and one sequence; None: too many."""
    number = 1
    while number <= MOST_DEVICES:
        split = replace(limits, tensor_parallel=number, pipeline_parallel=1)
        room = memory_bytes * limits.memory_share - workspace_bytes(geometry, split)
        sequence = _device_bytes(geometry, num_tokens, split, block_tokens=limits.block_tokens)
        if geometry.weight_bytes / number + sequence <= room:
            return number
        number *= 2
    return None


def _device_bytes(
    geometry: Geometry, num_tokens: int, limits: EngineLimits, *, block_tokens: int
) -> float:
    """What one sequence takes of the KV cache of one device."""
    held = geometry.kv_bytes(
        num_tokens, block_tokens=block_tokens, num_devices=limits.tensor_parallel
    )
    return held / limits.pipeline_parallel


def _mean_bytes(geometry: Geometry, limits: EngineLimits, sequences: Sequences) -> float | None:
    if not sequences.prompts:
        return None
    lengths = zip(sequences.prompts, sequences.outputs, strict=True)
    each = [
        _device_bytes(geometry, ceil(prompt + output), limits, block_tokens=limits.block_tokens)
        for prompt, output in lengths
    ]
    return sum(each) / len(each)
