"""Which rows are left to do, as a stream of blocks to prepare.

What is done is known part by part: a complete part is passed over without reading its rows (its
footer says where in the shard it ends), an incomplete one is read again and its finished rows are
left out. A retry adds the chosen rows of the chosen parts, or does just these.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from batchgen.corpus.readers import PartLimits, ReadCounts, ReadPoint, read_blocks
from batchgen.output.parts import PartInfo, PartKey
from batchgen.records import PartExtent, RowBlock, Shard
from batchgen.run.retry import Selection

BLOCK_ROWS = 256


@dataclass(frozen=True, slots=True)
class Work:
    """Everything that the reading thread needs to know."""

    shards: Sequence[Shard]
    parts: Mapping[PartKey, PartInfo]
    done_rows: Callable[[str, int], Iterable[int]]
    """Finished rows of a part."""
    columns: Sequence[str]
    limits: PartLimits
    counts: ReadCounts
    limit: int | None = None
    selection: Selection | None = None
    """Finished rows to do again."""
    with_rest: bool = True
    """Whether rows without an output row are done beside a selection."""

    def is_done(self) -> bool:
        """Whether there is nothing to read."""
        if self.selection:
            return False
        if self.selection is not None and not self.with_rest:
            return True
        left = self.limit
        for shard in self.shards:
            if left is not None and left <= 0:
                return True
            rows = self.finished_rows(shard)
            if rows is None:
                return False
            left = None if left is None else left - rows
        return True

    def finished_rows(self, shard: Shard) -> int | None:
        """Rows of a shard of which every part is complete; None where something is missing."""
        row = 0
        while True:
            extent = self._complete(shard, row)
            if extent is None or extent.shard_rows is not None:
                return None if extent is None else extent.shard_rows
            row += extent.num_rows

    def blocks(self) -> Iterator[tuple[RowBlock, Collection[int] | None]]:
        """Blocks in input order, each with the rows wanted of it (None: all)."""
        if self.selection is not None and not self.with_rest:
            yield from self._selected(self.selection)
            return
        left = self.limit
        for shard in self.shards:
            if left is not None and left <= 0:
                return
            rows = self.finished_rows(shard)
            if rows is None:
                rows = yield from self._pending(shard, left)
            left = None if left is None else left - rows

    def _pending(
        self, shard: Shard, max_rows: int | None
    ) -> Generator[tuple[RowBlock, Collection[int] | None], None, int]:
        """The unfinished parts of one shard; returns the shard's number of rows."""
        point = ReadPoint()
        while True:
            extent = self._complete(shard, point.row)
            if extent is not None:
                if extent.shard_rows is not None:
                    return extent.shard_rows
                point = ReadPoint(point.row + extent.num_rows, extent.source_end)
                continue
            next_point, part_start, done = None, -1, frozenset[int]()
            for block in self._read(shard, point, max_rows):
                extent = self._complete(shard, block.part_start)
                if extent is not None:
                    next_point = ReadPoint(block.part_start, extent.source_start)
                    break
                if block.part_start != part_start:
                    part_start, done = block.part_start, self._finished(block)
                yield block, _without(block, done)
                if block.extent is not None and block.extent.shard_rows is not None:
                    return block.extent.shard_rows
            if next_point is None:
                return point.row
            point = next_point

    def _complete(self, shard: Shard, start_row: int) -> PartExtent | None:
        """The extent of the part that begins here, if it is complete and stays as it is."""
        part = self.parts.get(PartKey(shard.name, start_row))
        if part is None or not part.complete or self._redone(shard.name, start_row):
            return None
        return part.extent

    def _redone(self, shard: str, start_row: int) -> Collection[int]:
        """Selected rows of the part that begins here."""
        return (self.selection or {}).get((shard, start_row), ())

    def _finished(self, block: RowBlock) -> frozenset[int]:
        """Rows of the block's part that are done already and stay as they are."""
        if PartKey(block.shard, block.part_start) not in self.parts:
            return frozenset()
        done = frozenset(int(row) for row in self.done_rows(block.shard, block.part_start))
        return done.difference(self._redone(block.shard, block.part_start))

    def _selected(self, selection: Selection) -> Iterator[tuple[RowBlock, Collection[int] | None]]:
        for shard in self.shards:
            for name, start_row in sorted(key for key in selection if key[0] == shard.name):
                wanted = selection[name, start_row]
                point = ReadPoint(start_row, self.parts[PartKey(name, start_row)].source_start)
                for block in self._read(shard, point, None):
                    if block.part_start != start_row:
                        break
                    rows = range(block.start_row, block.start_row + block.num_rows)
                    yield block, wanted.intersection(rows)
                    if block.extent is not None:
                        break

    def _read(self, shard: Shard, point: ReadPoint, max_rows: int | None) -> Iterator[RowBlock]:
        return read_blocks(
            shard,
            columns=self.columns,
            limits=self.limits,
            start=point,
            block_rows=BLOCK_ROWS,
            max_rows=max_rows,
            counts=self.counts,
        )


def _without(block: RowBlock, done: frozenset[int]) -> Collection[int] | None:
    """The block's rows that are not done; None: all of them."""
    if not done:
        return None
    return set(range(block.start_row, block.start_row + block.num_rows)) - done
