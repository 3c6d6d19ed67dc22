"""The reading thread hands over everything once, in order, and its problems too."""

import pytest

from batchgen.errors import DataError
from batchgen.records import PartExtent, RowBlock
from batchgen.run.pipeline import PromptPipeline
from batchgen.stats.meter import StageSeconds


def extent(start: int, rows: int) -> PartExtent:
    return PartExtent("a", start, rows, None, None, "digest", None)


def pipeline(blocks, *, max_blocks=2, heard=None):
    heard = heard if heard is not None else []
    return PromptPipeline(
        lambda: iter(blocks),
        lambda block, wanted: [block.start_row + offset for offset in range(block.num_rows)],
        on_part=lambda shard, start, source: heard.append(("part", shard, start)),
        on_extent=lambda extent: heard.append(("extent", extent.start_row)),
        stages=StageSeconds(),
        max_blocks=max_blocks,
    )


def block(part: int, start: int, rows: int, end: PartExtent | None = None) -> RowBlock:
    return RowBlock("a", part, start, rows, {}, extent=end)


def test_rows_come_in_order_and_then_the_end_for_good():
    with pipeline([(block(0, 0, 2), None), (block(0, 2, 1, extent(0, 3)), None)]) as prepared:
        assert prepared.fetch(True) == [0, 1]
        assert prepared.fetch(True) == [2]
        assert prepared.fetch(True) is None
        assert prepared.fetch(True) is None


def test_a_part_is_announced_once_and_its_extent_heard():
    heard = []
    blocks = [
        (block(0, 0, 2), None),
        (block(0, 2, 1, extent(0, 3)), None),
        (block(3, 3, 0, extent(3, 0)), None),
    ]
    with pipeline(blocks, heard=heard) as prepared:
        while prepared.fetch(True) is not None:
            pass
    assert heard == [("part", "a", 0), ("extent", 0), ("part", "a", 3), ("extent", 3)]


def test_a_problem_in_the_thread_is_raised_where_rows_are_taken():
    def blocks():
        yield block(0, 0, 1), None
        raise DataError("data/b.jsonl: is gone")

    with pipeline(blocks()) as prepared:
        assert prepared.fetch(True) == [0]
        with pytest.raises(DataError, match=r"b\.jsonl"):
            prepared.fetch(True)


def test_leaving_early_ends_a_thread_that_waits_for_room():
    blocks = [(block(0, row, 1), None) for row in range(1000)]
    with pipeline(blocks, max_blocks=1) as prepared:
        assert prepared.fetch(True) == [0]
    assert not prepared._thread.is_alive()
