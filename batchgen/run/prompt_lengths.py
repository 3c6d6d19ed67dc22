"""How long a job's prompts are, by a sample of its rows made into prompts as a run makes them.

The model's tokenizer counts. Where it is not on this machine, four bytes of text stand for a token,
which is about right for English and wrong for much else, so the answer says which of the two it
was. Prompts are made without a limit first, so that those that the model cannot take are seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from batchgen.capacity.hub import hub_problem, is_cached
from batchgen.config.models import JobConfig, ModelConfig
from batchgen.corpus.overlong import output_room
from batchgen.corpus.prompts import PromptBuilder
from batchgen.corpus.shards import find_shards
from batchgen.corpus.tokenizing import WordTokenizer, load_tokenizer
from batchgen.errors import EngineError
from batchgen.protocols import Tokenizer
from batchgen.records import Prompt, Shard
from batchgen.run.checking import BYTES_PER_TOKEN, NO_LIMIT_TOKENS, ShardLook, look_at
from batchgen.run.planning import rows_by_bytes
from batchgen.run.prompt_warnings import common_start
from batchgen.run.row_sample import SAMPLE_SHARDS, plan_job_columns, take_sample

ESTIMATED: Final = "estimated from bytes"
TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class PromptLengths:
    """Tokens of a sample's prompts, and rows of the whole input."""

    basis: str
    """How they were counted, in words; `ESTIMATED` without a tokenizer."""
    prompts: tuple[int, ...]
    """Of every sound row, before anything is cut."""
    sequences: tuple[tuple[int, int | None], ...]
    """Of the rows that enter the engine: prompt tokens, most output tokens (None: no limit)."""
    num_sampled: int
    num_refused: int
    """Rows that can never be prompts, their length apart."""
    num_too_long: int
    num_cut: int
    too_long: str | None
    """The first row that is too long, and its tokens."""
    common_start: int
    """Tokens with which all prompts begin."""
    num_completions: int
    """Of one prompt (`sampling.n`)."""
    shards: tuple[ShardLook, ...]
    num_rows: int
    """Of the whole input."""
    is_estimate: bool
    warnings: tuple[str, ...]

    @property
    def is_counted(self) -> bool:
        """Whether a tokenizer has counted."""
        return self.basis != ESTIMATED


def read_lengths(
    job: JobConfig, *, max_model_len: int | None, max_rows: int, tokens: bool, folder: Path | None
) -> PromptLengths:
    """Lengths of about `max_rows` rows; `folder` may hold a tokenizer for the planned model.

    Raises what a run would raise before its engine starts, but for a tokenizer that is not there.
    """
    shards = find_shards(job.input, exclude=Path(job.output.path))
    columns, plan = plan_job_columns(job, shards)
    tokenizer, basis, warnings = _tokenizer(job, tokens, folder)
    builder = PromptBuilder(
        job.prompt, job.sampling, tokenizer, max_model_len=NO_LIMIT_TOKENS, where=job.where
    )
    sample = take_sample(job, shards, columns, builder, max_rows=max_rows)
    looks = tuple(look_at(shard, sample) for shard in shards)
    num_rows, is_estimate = _count_rows(shards, looks)
    is_counted = basis != ESTIMATED
    lengths = [_length(prompt, is_counted) for prompt in sample.prompts]
    judged = [
        _judge(job, prompt, length, max_model_len)
        for prompt, length in zip(sample.prompts, lengths, strict=True)
    ]
    overlong = [
        (prompt, length)
        for prompt, length in zip(sample.prompts, lengths, strict=True)
        if max_model_len is not None and length >= max_model_len
    ]
    cuts = job.prompt.on_overlong != "error"
    return PromptLengths(
        basis=basis,
        prompts=tuple(lengths),
        sequences=tuple(sequence for sequence in judged if sequence is not None),
        num_sampled=sample.num_rows,
        num_refused=len(sample.refusals),
        num_too_long=0 if cuts else len(overlong),
        num_cut=len(overlong) if cuts else 0,
        too_long=f"{overlong[0][0].key}: {overlong[0][1]:,} tokens" if overlong else None,
        common_start=common_start(sample.prompts) if is_counted else 0,
        num_completions=max((prompt.sampling.n for prompt in sample.prompts), default=1),
        shards=looks,
        num_rows=num_rows,
        is_estimate=is_estimate,
        warnings=(*plan.warnings, *warnings),
    )


def _count_rows(shards: Sequence[Shard], looks: Sequence[ShardLook]) -> tuple[int, bool]:
    """Rows of the whole input, and whether some are estimated from bytes.

    Of many text shards of a kind the first ones are looked into, and stand for the others.
    """
    total = sum(seen.num_rows for seen in looks if seen.num_rows is not None)
    unknown: dict[tuple[str, str | None], list[Shard]] = {}
    for shard, seen in zip(shards, looks, strict=True):
        if seen.num_rows is None:
            unknown.setdefault((shard.format, shard.compression), []).append(shard)
    is_estimate = False
    for group in unknown.values():
        counts = [rows_by_bytes(shard) for shard in group[:SAMPLE_SHARDS]]
        num_rows = sum(rows for rows, _ in counts)
        seen_bytes = sum(shard.num_bytes for shard in group[:SAMPLE_SHARDS])
        all_bytes = sum(shard.num_bytes for shard in group)
        total += round(num_rows * all_bytes / seen_bytes) if seen_bytes else num_rows
        is_estimate |= len(group) > len(counts) or not all(is_exact for _, is_exact in counts)
    return total, is_estimate


def _length(prompt: Prompt, is_counted: bool) -> int:
    if is_counted:
        return len(prompt.token_ids)
    return max(1, -(-len(prompt.text.encode("utf-8", "replace")) // BYTES_PER_TOKEN))


def _judge(
    job: JobConfig, prompt: Prompt, length: int, max_model_len: int | None
) -> tuple[int, int | None] | None:
    """Tokens of the prompt as it enters the engine and of its completion at most; None: refused."""
    most = prompt.sampling.max_tokens
    if max_model_len is None:
        return length, most
    if length >= max_model_len:
        if job.prompt.on_overlong == "error":
            return None
        length = max_model_len - output_room(most, max_model_len)
    room = max_model_len - length
    return length, room if most is None else min(most, room)


def _tokenizer(
    job: JobConfig, tokens: bool, folder: Path | None
) -> tuple[Tokenizer, str, list[str]]:
    """A tokenizer, how it counts in words, and what is wrong with it."""
    if not tokens:
        return WordTokenizer(), ESTIMATED, []
    model = _model_with_tokenizer(job.model, folder)
    if model is None:
        return _without("the simulated engine has no tokenizer")
    name = model.tokenizer or model.name
    if not Path(name).expanduser().is_dir() and not is_cached(name, model.revision):
        problem = hub_problem()
        if problem is not None:
            return _without(f"the tokenizer of '{name}' is not on this machine, and {problem}")
    try:
        tokenizer = load_tokenizer(model, job.prompt)
    except EngineError as exc:
        return _without(exc.problems[0])
    return tokenizer, f"counted with the tokenizer of {name}", []


def _without(reason: str) -> tuple[Tokenizer, str, list[str]]:
    about = f"lengths are estimated, {BYTES_PER_TOKEN} bytes a token, without chat template"
    return WordTokenizer(), ESTIMATED, [f"{reason}: {about}"]


def _model_with_tokenizer(model: ModelConfig, folder: Path | None) -> ModelConfig | None:
    """The model section with which to load a tokenizer; None: there is none for it."""
    has_own = folder is not None and any((folder / name).is_file() for name in TOKENIZER_FILES)
    if model.tokenizer is None and has_own:
        return model.model_copy(update={"tokenizer": str(folder), "engine": "vllm"})
    if model.engine == "simulated" and model.tokenizer is None:
        return None
    return model
