"""What every trial of a session works on: an engine that is started once, and a sample of rows.

Comparing ways of batching means doing the same work in each of them. So the sample is fixed for
the whole session, and `pinned` fixes how long each completion gets: otherwise a way would look
fast because its completions happened to be short. The sample is spread evenly over the rows looked
at, which are the first ones of up to sixteen shards.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import orjson

from batchgen.config.models import JobConfig
from batchgen.corpus.prompts import PromptBuilder
from batchgen.corpus.shards import find_shards
from batchgen.corpus.tokenizing import load_tokenizer
from batchgen.engine.factory import (
    create_engine,
    engine_clock,
    known_model_len,
    prepare_environment,
)
from batchgen.errors import DataError
from batchgen.protocols import Engine, Tokenizer
from batchgen.records import EngineInfo, Prompt, Sampling, Shard
from batchgen.run.row_sample import RowSample, plan_job_columns, take_sample

STRUCTURED: Final = ("json_schema", "structured_outputs")
"""Sampling values that give a completion its form, and with it its end."""
ROWS_PER_SAMPLED: Final = 4
"""Rows looked at for each one that is taken."""
FIRST_LOOK: Final = 64
"""Rows among which there is nearly always a sound one."""
MOST_LOOKED_AT: Final = 16_384
"""Rows looked at for a sound one where the engine decides on the size of the sample."""
ANY_LENGTH: Final = 2**31
"""A length of the model, in tokens, that refuses no row."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Sound prompts of the job, in input order."""

    prompts: tuple[Prompt, ...]
    num_looked_at: int
    num_refused: int
    """Rows looked at that would never reach the engine."""

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of all rows together."""
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    def first(self, num_rows: int) -> "Workload":
        """The first so many rows of it."""
        return replace(self, prompts=self.prompts[:num_rows])

    def spread(self, num_rows: int) -> "Workload":
        """So many rows of it, evenly spread."""
        return replace(self, prompts=tuple(spread(self.prompts, num_rows)))

    def pinned(self, num_output_tokens: Sequence[int]) -> "Workload":
        """The same prompts, each with a completion (or `n` of them) of exactly so many tokens.

        `max_tokens` and `min_tokens` are set and `ignore_eos`; stop texts no longer end a
        completion, nor does a JSON schema or grammar, which is dropped. Every trial over it
        decodes the same number of tokens in each row.
        """
        pairs = zip(self.prompts, num_output_tokens, strict=True)
        prompts = tuple(
            prompt._replace(sampling=_of_length(prompt.sampling, number))
            for prompt, number in pairs
        )
        return replace(self, prompts=prompts)


class BenchSession:
    """The job's engine, tokenizer and sample, from `with` to its end.

    Raises what a run would raise before its first row (JobFileError, DataError, EngineError), and
    DataError where no row looked at is sound. `num_rows` is the size of the sample, or what gives
    it once the engine has told its slots.
    """

    def __init__(self, job: JobConfig, *, num_rows: int | Callable[[EngineInfo], int]) -> None:
        self.job = job
        self.clock = engine_clock(job.model)
        self.engine_start_s = 0.0
        self._num_rows = num_rows
        self._engine: Engine | None = None
        self._tokenizer: Tokenizer | None = None
        self.workload = Workload((), 0, 0)

    def __enter__(self) -> Self:
        shards, columns = self._inputs()
        prepare_environment(self.job.model)  # before anything imports torch
        self._tokenizer = load_tokenizer(self.job.model, self.job.prompt)
        self._check_rows(shards, columns)
        began = self.clock.now()
        self._engine = create_engine(
            self.job.model,
            tokenizer=self._tokenizer,
            sampling=self.job.sampling,
            clock=self.clock,
        )
        self.engine_start_s = self.clock.now() - began
        try:
            self.workload = self._sample(shards, columns)
        except BaseException:
            self._engine.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._engine is not None:
            self._engine.close()

    @property
    def engine(self) -> Engine:
        """The one engine of this session."""
        if self._engine is None:
            raise RuntimeError("the session has not been entered")
        return self._engine

    @property
    def tokenizer(self) -> Tokenizer:
        """The job's tokenizer."""
        if self._tokenizer is None:
            raise RuntimeError("the session has not been entered")
        return self._tokenizer

    def _inputs(self) -> tuple[list[Shard], Sequence[str]]:
        """Shards, and the columns that the job needs: what can fail before an engine starts."""
        job = self.job
        shards = find_shards(job.input, exclude=Path(job.output.path))
        columns, _ = plan_job_columns(job, shards)
        return shards, columns

    def _check_rows(self, shards: Sequence[Shard], columns: Sequence[str]) -> None:
        """Whether there is a sound row, before an engine starts for it.

        Where the engine decides on the length of the model, rows that are too long show later.
        """
        max_model_len = known_model_len(self.job.model) or ANY_LENGTH
        most = MOST_LOOKED_AT
        if isinstance(self._num_rows, int):
            most = ROWS_PER_SAMPLED * self._num_rows
        sample = self._look_at(shards, columns, max_model_len, min(FIRST_LOOK, most))
        if not sample.prompts:
            sample = self._look_at(shards, columns, max_model_len, most)
        if not sample.prompts:
            raise DataError(_nothing_to_measure(sample.refusals, self.job))

    def _look_at(
        self, shards: Sequence[Shard], columns: Sequence[str], max_model_len: int, max_rows: int
    ) -> RowSample:
        job = self.job
        builder = PromptBuilder(
            job.prompt,
            job.sampling,
            self.tokenizer,
            max_model_len=max_model_len,
            where=job.where,
        )
        return take_sample(job, shards, columns, builder, max_rows=max_rows)

    def _sample(self, shards: Sequence[Shard], columns: Sequence[str]) -> Workload:
        info, num_rows = self.engine.info, self._num_rows
        if not isinstance(num_rows, int):
            num_rows = num_rows(info)
        max_rows = ROWS_PER_SAMPLED * num_rows
        sample = self._look_at(shards, columns, info.max_model_len, max_rows)
        if not sample.prompts:
            raise DataError(_nothing_to_measure(sample.refusals, self.job))
        return Workload(
            prompts=tuple(spread(sample.prompts, num_rows)),
            num_looked_at=sample.num_rows,
            num_refused=len(sample.refusals),
        )


def is_structured(prompt: Prompt) -> bool:
    """Whether a JSON schema or grammar decides where the completion ends."""
    return any(prompt.sampling.values.get(name) is not None for name in STRUCTURED)


def spread(prompts: Sequence[Prompt], num_rows: int) -> list[Prompt]:
    """`num_rows` of these, evenly spread, in their order; all where there are no more.

    >>> spread([1, 2, 3, 4, 5, 6], 3)
    [1, 3, 5]
    """
    if num_rows >= len(prompts):
        return list(prompts)
    return [prompts[index * len(prompts) // num_rows] for index in range(num_rows)]


def _nothing_to_measure(refusals: Sequence[Any], job: JobConfig) -> str:
    if not refusals:
        return "input.paths: the shards hold no rows, so there is nothing to measure"
    first = refusals[0]
    return (
        f"all {len(refusals):,} rows looked at would be refused, so there is nothing to measure;"
        f" the first is {first.shard}:{first.row}: {first.error.type}: {first.error.message}."
        f" `batchgen check {job.name}.yaml` shows more"
    )


def _of_length(sampling: Sampling, num_tokens: int) -> Sampling:
    values = {
        **sampling.values,
        "max_tokens": num_tokens,
        "min_tokens": num_tokens,
        "ignore_eos": True,
        "stop": None,
        "stop_token_ids": None,
        **dict.fromkeys(STRUCTURED),
    }
    key = orjson.dumps(values, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS)
    return Sampling(values, blake2b(key, digest_size=16).digest())
