"""The work of a whole job, told from a sample of its prompts and from what runs have measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from batchgen.capacity.fit import EngineLimits, Sequences
from batchgen.capacity.geometry import Geometry
from batchgen.capacity.roofline import Work
from batchgen.run.measured import Measured
from batchgen.run.prompt_lengths import PromptLengths


@dataclass(frozen=True, slots=True)
class Outputs:
    """How long completions are taken to be."""

    mean: float | None
    basis: str
    """`bound`, `given` or `measured`."""
    source: str


def expected_outputs(
    lengths: PromptLengths, output_tokens: int | None, measured: Measured | None
) -> tuple[Outputs, Sequences]:
    """How long completions are taken to be, and the sequences that this makes of the sample."""
    expected: float | None = output_tokens
    basis, source = "given", "--output-tokens"
    if expected is None and measured is not None and measured.output_mean is not None:
        expected, basis = measured.output_mean, "measured"
        source = f"mean of {measured.num_completions:,} completions in {measured.path}"
    if expected is None:
        basis, source = "bound", "sampling.max_tokens, and what fits behind the prompt"
    prompts = [prompt for prompt, _ in lengths.sequences]
    outputs = _output_tokens([most for _, most in lengths.sequences], expected)
    if outputs is None:
        source = "neither sampling.max_tokens nor the model's length sets a limit"
        return Outputs(None, basis, source), Sequences([], [])
    sequences = Sequences(prompts, outputs)
    mean = sequences.output_mean if prompts else None
    return Outputs(mean, basis, source), sequences


def _output_tokens(limits: Sequence[int | None], expected: float | None) -> list[float] | None:
    """Tokens of each completion: `expected`, the limit where that is less; None: not known."""
    known = [
        min(value for value in (expected, most) if value is not None)
        for most in limits
        if expected is not None or most is not None
    ]
    return known if len(known) == len(limits) else None


def expected_work(
    lengths: PromptLengths,
    sequences: Sequences,
    geometry: Geometry,
    limits: EngineLimits,
    measured: Measured | None,
) -> Work | None:
    """The work of the whole input, told from the sample; None where nothing enters the engine.

    Of what rows share, a run has measured all; a sample shows the tokens with which all its prompts
    begin, and no copies.
    """
    if not sequences.prompts:
        return None
    share = len(sequences.prompts) / lengths.num_sampled
    copies = measured.duplicate_share if measured is not None else 0.0
    num_rows = max(1, round(lengths.num_rows * share * (1 - copies)))
    num_prompt_tokens = round(num_rows * sequences.prompt_mean)
    if measured is not None and measured.cached_share is not None:
        num_cached = round(num_prompt_tokens * measured.cached_share)
    else:
        num_cached = (num_rows - 1) * _shared_tokens(lengths, geometry, limits)
    num_sequences = num_rows * lengths.num_completions
    return Work(
        num_rows=num_rows,
        num_prompt_tokens=num_prompt_tokens,
        num_cached_tokens=num_cached,
        num_output_tokens=round(num_sequences * sequences.output_mean),
        num_running_mean=1.0,
        num_sequences=num_sequences,
    )


def _shared_tokens(lengths: PromptLengths, geometry: Geometry, limits: EngineLimits) -> int:
    """Prompt tokens that all but the first row find in the prefix cache: whole blocks."""
    keeps_all = all(memory.kind != "state" for memory in geometry.memories)
    if not (limits.prefix_caching and keeps_all):
        return 0
    return lengths.common_start // limits.block_tokens * limits.block_tokens
