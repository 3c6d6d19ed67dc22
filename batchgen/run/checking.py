"""Everything that can be known about a job without generating.

A check walks the same path as a run, with the same readers, prompt builder and tokenizer, and
stops where the engine would come in. Mistakes that every row shares (a template that cannot
compile, a column that no row has) are raised as the run would raise them; what concerns single
rows is judged on a bounded sample from the start of each shard, so that a check of a terabyte takes
no longer than that of a megabyte. Without token counts no tokenizer is loaded, and the whole check
takes well under a second.
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchgen.config.fingerprint import fingerprint
from batchgen.config.models import JobConfig
from batchgen.corpus.parquet import ParquetShard
from batchgen.corpus.prompts import PromptBuilder
from batchgen.corpus.shards import find_shards
from batchgen.corpus.tokenizing import WordTokenizer, load_tokenizer, model_length
from batchgen.engine.factory import known_model_len
from batchgen.engine.replies import load_script
from batchgen.errors import DataError, ResumeMismatch
from batchgen.output.layout import RunLayout
from batchgen.output.manifest import read_manifest
from batchgen.records import ERROR_TYPES, Prompt, Refusal, Shard
from batchgen.run.identity import check_fingerprint
from batchgen.run.model_identity import model_digest
from batchgen.run.options import RunOptions
from batchgen.run.planning import output_path
from batchgen.run.prompt_warnings import prompt_warnings
from batchgen.run.row_sample import RowSample, plan_job_columns, take_sample

SAMPLE_ROWS = 512
"""Rows looked at in all, spread over the shards."""
NO_LIMIT_TOKENS = 2**31 - 1
BYTES_PER_TOKEN = 4
BYTES_PER_ROW = 64
"""Generated columns of a row beside the text, compressed."""


@dataclass(frozen=True, slots=True)
class ShardLook:
    """One input file. `num_rows` is None where only reading the whole file would tell."""

    name: str
    num_bytes: int
    num_rows: int | None


@dataclass(frozen=True, slots=True)
class PromptLook:
    """A prompt as the engine would get it. Without a tokenizer `token_ids` is None."""

    shard: str
    row: int
    text: str
    token_ids: tuple[int, ...] | None
    num_tokens: int | None
    room_tokens: int | None
    """Output tokens that fit behind it in the model; None where its length is not known."""


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """Rows of the sample that will be refused for the same reason, and the first of them."""

    num_rows: int
    shard: str
    row: int
    message: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check has found; `batchgen check --json` prints these fields."""

    job: str
    output_path: str
    shards: tuple[ShardLook, ...]
    num_rows: int | None
    is_estimate: bool
    columns: tuple[str, ...]
    used_columns: tuple[str, ...]
    kept_columns: tuple[str, ...]
    max_model_len: int | None
    prompts: tuple[PromptLook, ...]
    num_sampled: int
    refused: dict[str, RefusedRows]
    num_schemas: int
    estimated_output_bytes: int | None
    free_bytes: int
    warnings: tuple[str, ...]
    problems: tuple[str, ...] = ()
    """What a run would stop at, because the directory holds rows of another job."""
    stop_early: Mapping[str, Any] | None = None
    """The rules that stop rows early; None: there are none."""

    @property
    def num_refused(self) -> int:
        """Rows of the sample that will be refused."""
        return sum(rows.num_rows for rows in self.refused.values())


def check_job(job: JobConfig, *, tokens: bool = True, num_prompts: int = 3) -> CheckReport:
    """Look at a job without starting its engine; `tokens` loads the model's tokenizer.

    Raises JobFileError and DataError where the run would raise them before its engine starts, and
    EngineError where the tokenizer cannot be loaded. What an earlier run has left is compared as
    well, but what does not match is reported: the rest of the report is as it is.
    """
    _check_writable(output_path(job, RunOptions()))
    _check_script(job)
    shards = find_shards(job.input, exclude=Path(job.output.path))
    used, plan = plan_job_columns(job, shards)
    max_model_len = _model_length(job)
    known_length = max_model_len if tokens else None
    tokenizer = load_tokenizer(job.model, job.prompt) if tokens else WordTokenizer()
    builder = PromptBuilder(
        job.prompt,
        job.sampling,
        tokenizer,
        max_model_len=known_length or NO_LIMIT_TOKENS,
        where=job.where,
    )
    sample = take_sample(job, shards, used, builder, max_rows=SAMPLE_ROWS)
    looks = tuple(look_at(shard, sample) for shard in shards)
    num_rows, is_estimate = _count_rows(shards, looks, sample)
    most_bytes = _most_output_bytes(job, looks, num_rows, max_model_len)
    free_bytes = shutil.disk_usage(_existing_parent(Path(job.output.path))).free
    warnings = [
        *plan.warnings,
        *prompt_warnings(job, sample.prompts, tokenizer if tokens else None, known_length),
        *_disk_warnings(most_bytes, free_bytes, job.output.path),
        *_refusal_warnings(sample),
    ]
    return CheckReport(
        job=job.name,
        output_path=job.output.path,
        shards=looks,
        num_rows=num_rows,
        is_estimate=is_estimate,
        columns=tuple(plan.columns),
        used_columns=used,
        kept_columns=tuple(plan.kept_schema.names),
        max_model_len=max_model_len,
        prompts=tuple(
            _prompt_look(prompt, known_length, tokens) for prompt in sample.prompts[:num_prompts]
        ),
        num_sampled=sample.num_rows,
        refused=_by_type(sample.refusals),
        num_schemas=len(_schemas(sample.prompts)),
        estimated_output_bytes=most_bytes,
        free_bytes=free_bytes,
        warnings=tuple(warnings),
        problems=_resume_problems(job),
        stop_early=job.stop_early.values() or None,
    )


def _model_length(job: JobConfig) -> int | None:
    return known_model_len(job.model) or model_length(job.model)


def look_at(shard: Shard, sample: RowSample) -> ShardLook:
    """An input file, with its rows where the sample or the file itself tells them."""
    num_rows = sample.whole_shards.get(shard.name)
    if shard.format == "parquet":
        file = ParquetShard(shard)
        num_rows = file.num_rows
        file.close()
    return ShardLook(shard.name, shard.num_bytes, num_rows)


def _count_rows(
    shards: Sequence[Shard], looks: Sequence[ShardLook], sample: RowSample
) -> tuple[int | None, bool]:
    """Rows of the whole input, and whether some of them are estimated from their bytes.

    What a compressed shard holds cannot be told from its size.
    """
    known = sum(look.num_rows for look in looks if look.num_rows is not None)
    unknown = [shard for shard, look in zip(shards, looks, strict=True) if look.num_rows is None]
    if not unknown:
        return known, False
    if any(shard.compression for shard in unknown) or not sample.num_text_rows:
        return None, False
    bytes_per_row = max(sample.num_text_bytes / sample.num_text_rows, 1)
    return known + round(sum(shard.num_bytes for shard in unknown) / bytes_per_row), True


def _prompt_look(prompt: Prompt, max_model_len: int | None, has_tokens: bool) -> PromptLook:
    num_tokens = len(prompt.token_ids)
    return PromptLook(
        shard=prompt.shard,
        row=prompt.row,
        text=prompt.text,
        token_ids=tuple(int(number) for number in prompt.token_ids) if has_tokens else None,
        num_tokens=num_tokens if has_tokens else None,
        room_tokens=None if max_model_len is None else max_model_len - num_tokens,
    )


def _by_type(refusals: Iterable[Refusal]) -> dict[str, RefusedRows]:
    groups: dict[str, list[Refusal]] = {name: [] for name in ERROR_TYPES}
    for refusal in refusals:
        groups[refusal.error.type].append(refusal)
    return {
        name: RefusedRows(len(rows), rows[0].shard, rows[0].row, rows[0].error.message)
        for name, rows in groups.items()
        if rows
    }


def _schemas(prompts: Iterable[Prompt]) -> set[str]:
    schemas = (prompt.sampling.values.get("json_schema") for prompt in prompts)
    return {schema for schema in schemas if schema is not None}


def _most_output_bytes(
    job: JobConfig, looks: Sequence[ShardLook], num_rows: int | None, max_model_len: int | None
) -> int | None:
    """A rough upper bound of what the run writes: every completion as long as it may be."""
    constants = job.sampling.constants()
    max_tokens = constants.get("max_tokens") or max_model_len
    if num_rows is None or max_tokens is None:
        return None
    return output_bytes(job, looks, num_rows, max_tokens * int(constants.get("n") or 1))


def output_bytes(
    job: JobConfig, looks: Sequence[ShardLook], num_rows: int, tokens_per_row: float
) -> int:
    """Roughly what a run writes: kept input columns as large as their files, the rest as text."""
    per_row = BYTES_PER_ROW + BYTES_PER_TOKEN * tokens_per_row
    keeps = job.output.keep is None or bool(job.output.keep)
    kept = sum(look.num_bytes for look in looks) if keeps else 0
    return round(num_rows * per_row) + kept


def _disk_warnings(output_bytes: int | None, free_bytes: int, path: str) -> list[str]:
    if output_bytes is None or output_bytes <= free_bytes:
        return []
    return [
        f"{path}: the output may take {output_bytes / 1e9:,.1f} GB and {free_bytes / 1e9:,.1f} GB"
        " are free; free some space, or set output.path to another disk"
    ]


def _refusal_warnings(sample: RowSample) -> list[str]:
    if sample.prompts or not sample.refusals:
        return []
    types = ", ".join(_by_type(sample.refusals))
    first = sample.refusals[0]
    return [
        f"all {len(sample.refusals):,} rows looked at will be refused ({types}), first"
        f" {first.shard}:{first.row}: {first.error.message}"
    ]


def _check_writable(path: Path) -> None:
    """Raises DataError where a run could not make its directory, or write into it."""
    parent = _existing_parent(path)
    if not parent.is_dir():
        raise DataError(f"output.path '{path}' leads through '{parent}', which is a file")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise DataError(
            f"output.path '{path}' cannot be written: no permission to write into '{parent}'"
        )


def _check_script(job: JobConfig) -> None:
    """Raises JobFileError for a script of the simulated engine that cannot be used."""
    if job.model.engine == "simulated":
        load_script(job.model.simulated().script)


def _resume_problems(job: JobConfig) -> tuple[str, ...]:
    """What a run would refuse because the output directory holds rows of another job."""
    manifest = read_manifest(RunLayout(Path(job.output.path)))
    if manifest is None:
        return ()
    prints = fingerprint(job, model_digest=model_digest(job.model.name, job.model.tokenizer))
    try:
        check_fingerprint(manifest["fingerprint"], prints, path=job.output.path, accepted=())
    except ResumeMismatch as exc:
        return exc.problems
    return ()


def _existing_parent(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path
