"""The time that a piece of work takes at least on a machine: the roofline.

Two rates bound everything: how fast the machine multiplies matrices, and how fast it reads memory.
Prefill handles all tokens of a prompt at once and is limited by arithmetic. A decode step makes one
token for each running sequence, and for that it reads every weight and the KV cache of them all.
The weights are read once whatever the number of sequences, which is why batching is nearly free
until arithmetic saturates (`critical_batch`). The bound of a run over the time that it took is its
fraction of the roofline.

A bound is honest only as long as nothing can be faster. So the output layer counts once per prompt
(an engine computes it for the last position alone), and prefill may hide behind the memory reads
of decode (an engine puts both into one step). What is not counted (activations, sampling,
tokenizing) makes the true time longer, never shorter. The formulas are those of the roofline model
(Williams et al., doi:10.1145/1498765.1498785) for a transformer: 2 operations per weight and token,
and 4 per context token, head and head dimension in attention.
"""

from dataclasses import dataclass

from batchgen.capacity.geometry import Geometry
from batchgen.capacity.rates import Rates


@dataclass(frozen=True, slots=True)
class Work:
    """What was, or is to be, computed: sums over rows; copies of equal prompts left out."""

    num_rows: int
    num_prompt_tokens: int
    """Tokens of all prompts, cached ones included."""
    num_cached_tokens: int
    """Prompt tokens that the prefix cache spares."""
    num_output_tokens: int
    num_running_mean: float
    """Sequences in a decode step, on average."""
    num_sequences: int | None = None
    """More than rows where prompts have several completions; None: one each."""

    @property
    def context_mean(self) -> float:
        """Tokens before the one that is decoded, averaged over sequences of equal lengths."""
        num_sequences = self.num_sequences or self.num_rows
        return self.num_prompt_tokens / self.num_rows + self.num_output_tokens / num_sequences / 2


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds that the work takes at least."""

    prefill_s: float
    """All prompt tokens that no cache spares, at the matrix rate."""
    decode_s: float
    """All decode steps, each at the slower of its memory reads and its arithmetic."""
    overlap_s: float = 0.0
    """Prefill that fits beside the memory reads of decode steps."""

    @property
    def total_s(self) -> float:
        """Prefill and decode together, where one may hide behind the other."""
        return self.prefill_s + self.decode_s - self.overlap_s


def at_least_s(geometry: Geometry, rates: Rates, work: Work) -> Bound:
    """The bound of a whole job or run; zero where there is no work.

    The first token of a sequence comes out of prefill, each of the others out of a decode step with
    `num_running_mean` sequences. One mean length stands for all rows: attention grows with
    the square of the length, so rows of unequal lengths take longer than this.
    """
    if work.num_rows <= 0:
        return Bound(0.0, 0.0)
    prefill_s = _prefill_flops(geometry, work) / rates.matmul_flops_per_s
    num_decoded = max(0, work.num_output_tokens - (work.num_sequences or work.num_rows))
    if num_decoded == 0:
        return Bound(prefill_s, 0.0)
    num_running = max(1.0, work.num_running_mean)
    num_steps = num_decoded / num_running
    read_s, compute_s = decode_step_parts_s(geometry, rates, num_running, work.context_mean)
    idle_s = max(0.0, read_s - compute_s) * num_steps
    return Bound(prefill_s, max(read_s, compute_s) * num_steps, min(prefill_s, idle_s))


def decode_step_s(geometry: Geometry, rates: Rates, num_running: float, context: float) -> float:
    """Seconds of one decode step of `num_running` sequences with `context` tokens each."""
    return max(decode_step_parts_s(geometry, rates, num_running, context))


def decode_step_parts_s(
    geometry: Geometry, rates: Rates, num_running: float, context: float
) -> tuple[float, float]:
    """The same as (memory reads, arithmetic): the larger one decides."""
    kv_bytes = num_running * geometry.kv_bytes(round(context))
    read_bytes = geometry.weight_bytes_read(num_running) + kv_bytes
    flops = num_running * (2 * geometry.num_active_params + geometry.attention_flops(context))
    return read_bytes / rates.memory_bytes_per_s, flops / rates.matmul_flops_per_s


def prefill_tokens_per_s(geometry: Geometry, rates: Rates, prompt_tokens: float) -> float:
    """The most prompt tokens a second, for prompts of `prompt_tokens` without a cached start."""
    if prompt_tokens <= 0:
        raise ValueError(f"a prompt has at least one token, not {prompt_tokens}")
    per_token = 2 * _hidden_params(geometry) + geometry.attention_flops(prompt_tokens / 2)
    per_prompt = 2 * _output_params(geometry)
    return rates.matmul_flops_per_s / (per_token + per_prompt / prompt_tokens)


def critical_batch(geometry: Geometry, rates: Rates) -> float:
    """Sequences from which on a step's arithmetic takes longer than reading the weights.

    Up to there another sequence is nearly free. Of a mixture of experts all count as read. KV cache
    is left out: each sequence reads its own, so it moves the point up, and with long contexts
    decode stays bound by memory for ever.
    """
    read_s = geometry.weight_bytes_read(float("inf")) / rates.memory_bytes_per_s
    return read_s / (2 * geometry.num_active_params / rates.matmul_flops_per_s)


def _prefill_flops(geometry: Geometry, work: Work) -> float:
    num_computed = max(0, work.num_prompt_tokens - work.num_cached_tokens)
    context = (work.num_prompt_tokens + work.num_cached_tokens) / (2 * work.num_rows)
    per_token = 2 * _hidden_params(geometry) + geometry.attention_flops(context)
    return num_computed * per_token + work.num_rows * 2 * _output_params(geometry)


def _output_params(geometry: Geometry) -> int:
    """Weights of the output layer, which prefill needs for the last position alone."""
    return min(geometry.vocab_size * geometry.hidden_size, geometry.num_active_params)


def _hidden_params(geometry: Geometry) -> int:
    return geometry.num_active_params - _output_params(geometry)
