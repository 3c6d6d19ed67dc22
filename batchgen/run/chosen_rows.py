"""Some rows of the job by name, or its first ones, made into prompts as a run would make them."""

from collections.abc import Iterator, Sequence
from typing import Final

from batchgen.config.models import JobConfig
from batchgen.config.wording import nearest
from batchgen.corpus.parquet import ParquetShard
from batchgen.corpus.prompts import PromptBuilder
from batchgen.corpus.readers import PartLimits, ReadPoint, read_blocks
from batchgen.errors import UsageError
from batchgen.records import Prompt, Refusal, RowKey, Shard

Item = Prompt | Refusal

_NO_LIMIT: Final = 2**62
_BLOCK_ROWS: Final = 256


class ChosenRows:
    """Reads single rows of a job's shards. `columns` are those that prompts need."""

    def __init__(
        self,
        job: JobConfig,
        shards: Sequence[Shard],
        columns: Sequence[str],
        builder: PromptBuilder,
    ) -> None:
        self._shards = shards
        self._columns = columns
        self._builder = builder
        self._limits = PartLimits(
            _NO_LIMIT, _NO_LIMIT, job.input.max_line_bytes, job.input.on_bad_line
        )

    def first(self, num_rows: int) -> list[Item]:
        """The first rows in input order; fewer where there are no more."""
        items: list[Item] = []
        for shard in self._shards:
            if len(items) == num_rows:
                break
            items += self._read(shard, 0, num_rows - len(items))
        return items

    def named(self, keys: Sequence[RowKey]) -> list[Item]:
        """These rows, in this order. Raises UsageError where there is no such shard or row."""
        by_name = {shard.name: shard for shard in self._shards}
        unknown = [key for key in keys if key.shard not in by_name]
        if unknown:
            raise UsageError(
                [f"--row {key}: no such shard{_other(key.shard, by_name)}" for key in unknown]
            )
        return [self._one(by_name[key.shard], key.row) for key in dict.fromkeys(keys)]

    def _one(self, shard: Shard, row: int) -> Item:
        items = [] if _is_behind_parquet(shard, row) else list(self._read(shard, row, 1))
        if not items:
            raise UsageError(
                f"--row {shard.name}:{row}: the shard has no such row; rows count from 0"
            )
        return items[0]

    def _read(self, shard: Shard, start_row: int, num_rows: int) -> Iterator[Item]:
        """Rows of one shard; Parquet is entered at the row, of text the rows before it are read."""
        end = start_row + num_rows
        entry = ReadPoint(start_row if shard.format == "parquet" else 0)
        wanted = range(start_row, end)
        for block in read_blocks(
            shard,
            columns=self._columns,
            limits=self._limits,
            start=entry,
            block_rows=_BLOCK_ROWS,
            max_rows=end,
        ):
            yield from self._builder.build(block, wanted)


def parse_row(text: str) -> RowKey:
    """A row as the command line names it, `SHARD:ROW`. Raises UsageError for anything else.

    >>> parse_row("docs/a.jsonl:17")
    RowKey(shard='docs/a.jsonl', row=17)
    """
    shard, _, row = text.rpartition(":")
    if not shard or not row.isascii() or not row.isdecimal():
        raise UsageError(f"--row {text}: write it as SHARD:ROW, such as docs.jsonl:17")
    return RowKey(shard, int(row))


def _is_behind_parquet(shard: Shard, row: int) -> bool:
    if shard.format != "parquet":
        return False
    file = ParquetShard(shard)
    file.close()
    return row >= file.num_rows


def _other(name: str, known: dict[str, Shard]) -> str:
    return nearest(name, known) or f"; the first is '{next(iter(known), 'none')}'"
