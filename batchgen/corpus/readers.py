"""A shard to blocks of rows, from the start of any part on, in bounded memory.

Whatever the format, two promises hold. Where parts end depends on the shard and the limits alone,
not on where reading began or how large blocks are. And reading from a part's start gives the tail
of what reading from the shard's start gives. A resumed run rests on both.
"""

from collections.abc import Iterator, Sequence

from batchgen.corpus.limits import PartLimits, ReadCounts, ReadPoint
from batchgen.corpus.parquet import parquet_blocks
from batchgen.corpus.text import text_blocks
from batchgen.records import PartExtent, RowBlock, Shard

__all__ = ["PartLimits", "ReadCounts", "ReadPoint", "is_same_slice", "read_blocks"]

_SHARD_START = ReadPoint()


def read_blocks(
    shard: Shard,
    *,
    columns: Sequence[str],
    limits: PartLimits,
    start: ReadPoint = _SHARD_START,
    block_rows: int = 512,
    max_rows: int | None = None,
    counts: ReadCounts | None = None,
) -> Iterator[RowBlock]:
    """The shard's rows from `start`, which is the start of a part, to its end, in order.

    A block holds at most `block_rows` rows (fewer where rows are long) of one part, and the values
    of those `columns` that the shard has. The last block of a part carries its extent, and may be
    empty; the extent of the shard's last part has `shard_rows`. A shard without rows is one empty
    block. `max_rows` ends the shard after so many rows. Unreadable rows are in `errors`.
    Raises DataError for a file that cannot be read, is damaged, or has shrunk.
    """
    if shard.format == "parquet":
        return parquet_blocks(
            shard,
            columns=columns,
            limits=limits,
            start=start,
            block_rows=block_rows,
            max_rows=max_rows,
        )
    return text_blocks(
        shard,
        columns=columns,
        limits=limits,
        start=start,
        block_rows=block_rows,
        max_rows=max_rows,
        counts=counts if counts is not None else ReadCounts(),
    )


def is_same_slice(shard: Shard, known: PartExtent, limits: PartLimits) -> bool:
    """Whether the rows of this extent still read as they did when it was made, by their hash."""
    point = ReadPoint(known.start_row, known.source_start)
    end = known.start_row + known.num_rows
    for block in read_blocks(shard, columns=(), limits=limits, start=point, max_rows=end):
        if block.extent is not None:
            now = block.extent
            return (now.num_rows, now.source_digest) == (known.num_rows, known.source_digest)
    return False
