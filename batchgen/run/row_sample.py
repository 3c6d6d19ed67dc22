"""A bounded sample of the job's rows, made into prompts as a run would make them.

Rows come from the start of the first shards, the same number from each, so that looking at a
terabyte takes no longer than looking at a megabyte. What only a later row shows, a sample misses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from batchgen.config.models import JobConfig
from batchgen.corpus.prompts import PromptBuilder, column_uses
from batchgen.corpus.readers import PartLimits, read_blocks
from batchgen.corpus.schema import ColumnPlan, plan_columns
from batchgen.records import PartExtent, Prompt, Refusal, Shard
from batchgen.run.planning import added_names

SAMPLE_SHARDS: Final = 16
SAMPLE_BYTES: Final = 4 * 2**20
"""A shard's sample ends after so much input: documents may be long."""


@dataclass(slots=True)
class RowSample:
    """Rows looked at: prompts and refusals, each in input order."""

    prompts: list[Prompt] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    whole_shards: dict[str, int] = field(default_factory=dict)
    """Rows of shards that the sample has read to their end."""
    num_text_bytes: int = 0
    """Input bytes behind `num_text_rows` rows of uncompressed JSONL and CSV."""
    num_text_rows: int = 0

    @property
    def num_rows(self) -> int:
        """Rows looked at."""
        return len(self.prompts) + len(self.refusals)


def plan_job_columns(job: JobConfig, shards: Sequence[Shard]) -> tuple[tuple[str, ...], ColumnPlan]:
    """The columns that prompts and sampling use, and those that a first run would keep.

    Raises JobFileError and DataError where the run would raise them before its engine starts.
    """
    uses = column_uses(job.prompt, job.sampling, job.where)
    plan = plan_columns(
        shards,
        needed=tuple(uses),
        keep=job.output.keep,
        generated=added_names(job),
        prefix=job.output.prefix,
        fixed=None,
        used_by=uses,
    )
    return tuple(uses), plan


def take_sample(
    job: JobConfig,
    shards: Sequence[Shard],
    columns: Sequence[str],
    builder: PromptBuilder,
    *,
    max_rows: int,
) -> RowSample:
    """At most `max_rows` rows, a share of them from each of the first shards, as prompts."""
    limits = PartLimits(
        max_rows=max_rows,
        max_bytes=SAMPLE_BYTES,
        max_line_bytes=job.input.max_line_bytes,
        on_bad_line=job.input.on_bad_line,
    )
    looked_at = shards[:SAMPLE_SHARDS]
    each, more = divmod(max_rows, max(len(looked_at), 1))
    sample = RowSample()
    for number, shard in enumerate(looked_at[:max_rows]):
        rows_each = each + (number < more)
        for block in read_blocks(shard, columns=columns, limits=limits, max_rows=rows_each):
            for item in builder.build(block):
                if isinstance(item, Prompt):
                    sample.prompts.append(item)
                else:
                    sample.refusals.append(item)
            if block.extent is not None:
                _note_extent(sample, shard, block.extent, rows_each)
                break
    return sample


def _note_extent(sample: RowSample, shard: Shard, extent: PartExtent, max_rows: int) -> None:
    if extent.shard_rows is not None and extent.shard_rows < max_rows:
        sample.whole_shards[shard.name] = extent.shard_rows
    if shard.format != "parquet" and shard.compression is None and extent.source_end is not None:
        sample.num_text_bytes += extent.source_end
        sample.num_text_rows += extent.num_rows
