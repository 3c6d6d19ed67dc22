"""Killed at any step, any number of times, a run leaves what an undisturbed run leaves."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchgen.output.crashpoints import STEPS, VARIABLE, CrashPoints
from batchgen.output.journal import list_segments, segment_path
from batchgen.output.verify import verify
from batchgen.output.writer import PartOpening, Writer

SHARDS = {"a.jsonl": 7, "b/c.parquet": 12, "empty.jsonl": 0}
PART_ROWS = 5
BATCH_ROWS = 4
WRITER_STEPS = [step for step in STEPS if not step.startswith(("manifest", "success"))]

Row = tuple[str, int, int]
"""Shard, first row of the part, row."""


class Killed(BaseException):
    """Stands for the end of the process."""


def _kill() -> None:
    raise Killed


class Sitting:
    """One run of a job over SHARDS, which ends where `crash` says."""

    def __init__(self, world: Any, crash: CrashPoints | None = None) -> None:
        self.world = world
        self.writer: Writer = world.writer(crash, segment_bytes=600)

    def run(self, order: list[int], groups: list[int], extents_first: bool) -> None:
        """Do what is left, in this order and in groups of these sizes."""
        self.writer.recover()
        self.writer.start()
        parts = list(self._parts_left())
        extents = [extent for _, extent, _ in parts]
        openings = [opening for opening, _, _ in parts]
        rows = [row for _, _, left in parts for row in left]
        self._tell([*openings, *(extents if extents_first else [])])
        shuffled = sorted(zip(order, rows, strict=False), key=lambda pair: pair[0])
        self._feed([row for _, row in shuffled], groups)
        self._tell([] if extents_first else extents)
        self.writer.finish()

    def _feed(self, rows: list[Row], groups: list[int]) -> None:
        batch_id, in_batch = self.writer.state.next_batch_id, 0
        while rows:
            size = min(groups[len(rows) % len(groups)], BATCH_ROWS - in_batch)
            group, rows = rows[:size], rows[size:]
            items: list[Any] = [
                [self.world.row(row, shard, part, batch_id=batch_id) for shard, part, row in group]
            ]
            in_batch += len(group)
            if in_batch == BATCH_ROWS or not rows:
                items.append(self.world.batch(batch_id, in_batch))
                batch_id, in_batch = batch_id + 1, 0
            self._tell(items)

    def _tell(self, items: list[Any]) -> None:
        self.writer.append(items)
        if len(items) > 1:
            self.writer.sync()
        while self.writer.num_ripe:
            self.writer.publish_ripe()

    def _parts_left(self) -> Iterator[tuple[PartOpening, Any, list[Row]]]:
        """Parts that are not complete, with their extents and the rows that they lack."""
        for shard, num_rows in SHARDS.items():
            for start in range(0, max(num_rows, 1), PART_ROWS):
                info = self.writer.state.parts.get((shard, start))  # type: ignore[call-overload]
                if info is not None and info.complete:
                    continue
                end = min(start + PART_ROWS, num_rows)
                extent = self.world.extent(
                    end - start, shard, start, shard_rows=num_rows if end == num_rows else None
                )
                done = set(self.writer.state.done_rows(shard, start).tolist())
                left = [(shard, start, row) for row in range(start, end) if row not in done]
                yield PartOpening(shard, start, start * 100), extent, left


def check(world: Any) -> None:
    """The directory is that of an undisturbed run."""
    rows = [(row["shard"], row["row"], row["text"], row["output"]) for row in world.outputs()]
    assert rows == [
        (shard, row, f"{shard} {row}", f"reply to {shard} {row}")
        for shard, num_rows in SHARDS.items()
        for row in range(num_rows)
    ]
    assert verify(world.layout, SHARDS) == []
    assert world.journal_files() == []
    assert not list(world.layout.path.rglob("*.tmp"))


ORDERS = st.permutations(range(sum(SHARDS.values())))
GROUPS = st.lists(st.integers(1, 6), min_size=1, max_size=4)
KILLS = st.lists(st.tuples(st.sampled_from(WRITER_STEPS), st.integers(1, 6)), max_size=4)


@settings(max_examples=20, deadline=None)
@given(order=ORDERS, groups=GROUPS, kills=KILLS, extents_first=st.booleans())
def test_whatever_the_order_and_the_kills_the_output_is_the_same(
    order: list[int],
    groups: list[int],
    kills: list[tuple[str, int]],
    extents_first: bool,
    make_world: Any,
    new_folder: Any,
) -> None:
    with new_folder() as folder:
        world = make_world(Path(folder) / "run")
        for step, count in kills:
            with suppress(Killed):
                Sitting(world, CrashPoints(step, count, _kill)).run(order, groups, extents_first)
        Sitting(world).run(order, groups, extents_first)
        check(world)


class Disk(CrashPoints):
    """Knows which bytes of the newest segment a power cut cannot take."""

    def __init__(self, world: Any, step: str, count: int) -> None:
        super().__init__(step, count, _kill)
        self._journal = world.layout.journal
        self._num_safe_bytes = 0

    def reach(self, step: str) -> None:
        self._num_safe_bytes = {
            "journal_synced": lambda: self._newest().stat().st_size,
            "journal_rotated": lambda: 0,
        }.get(step, lambda: self._num_safe_bytes)()
        super().reach(step)

    def cut_power(self, num_bytes: int) -> None:
        """Lose up to so many bytes that were appended since the last sync."""
        for segment in list_segments(self._journal)[-1:]:
            data = segment_path(self._journal, segment).read_bytes()
            self._newest().write_bytes(data[: max(self._num_safe_bytes, len(data) - num_bytes)])

    def _newest(self) -> Path:
        return segment_path(self._journal, list_segments(self._journal)[-1])


@settings(max_examples=20, deadline=None)
@given(
    order=ORDERS,
    groups=GROUPS,
    step=st.sampled_from(WRITER_STEPS),
    count=st.integers(1, 12),
    cut=st.integers(0, 2000),
)
@example(order=list(range(19)), groups=[1], step="part_renamed", count=1, cut=1)
def test_whatever_a_power_cut_takes_from_the_journal_is_done_again(
    order: list[int],
    groups: list[int],
    step: str,
    count: int,
    cut: int,
    make_world: Any,
    new_folder: Any,
) -> None:
    with new_folder() as folder:
        world = make_world(Path(folder) / "run")
        disk = Disk(world, step, count)
        with suppress(Killed):
            Sitting(world, disk).run(order, groups, extents_first=True)
        disk.cut_power(cut)
        Sitting(world).run(order, groups, extents_first=True)
        check(world)


def test_a_segment_that_a_power_cut_brings_back_changes_nothing(world: Any) -> None:
    with suppress(Killed):
        Sitting(world, CrashPoints("segment_deleted", 1, _kill)).run([*range(19)], [2], True)
    with suppress(Killed):
        Sitting(world, CrashPoints("batches_written", 1, _kill)).run([*range(19)], [2], True)
    segments = {path: path.read_bytes() for path in world.layout.journal.iterdir()}
    Sitting(world).run(list(range(19)), [2], extents_first=True)
    before = world.files()
    for path, data in segments.items():
        path.write_bytes(data)
    world.writer().recover()
    assert segments
    assert world.files() == before
    check(world)


@settings(max_examples=15, deadline=None)
@given(
    chosen=st.sets(st.integers(0, 11), min_size=1),
    kills=st.lists(st.tuples(st.sampled_from(WRITER_STEPS), st.integers(1, 3)), max_size=3),
    is_announced=st.booleans(),
)
def test_retried_rows_are_replaced_once_whatever_the_kills(
    chosen: set[int],
    kills: list[tuple[str, int]],
    is_announced: bool,
    make_world: Any,
    new_folder: Any,
) -> None:
    with new_folder() as folder:
        world = make_world(Path(folder) / "run")
        Sitting(world).run(list(range(19)), [4], extents_first=True)
        for step, count in [*kills, (None, 1)]:
            writer = world.writer(CrashPoints(step, count, _kill), segment_bytes=600)
            with suppress(Killed):
                retry(world, writer, chosen, is_announced)
        again = {row["row"] for row in world.outputs() if row["output"] == "second try"}
        assert again == chosen
        assert len(world.outputs()) == sum(SHARDS.values())
        assert verify(world.layout, SHARDS) == []


def retry(world: Any, writer: Writer, chosen: set[int], is_announced: bool) -> None:
    """Do the chosen rows of the second shard again, those that are not done again yet."""
    shard = "b/c.parquet"
    writer.recover()
    writer.start()
    old = {
        row["row"] for row in world.outputs() if row["output"] == f"reply to {shard} {row['row']}"
    }
    batch_id = writer.state.next_batch_id
    for part in range(0, 12, PART_ROWS):
        wanted = sorted(chosen & old & set(range(part, part + PART_ROWS)))
        writer.append([PartOpening(shard, part, None, wanted if is_announced else None)])
        for row in wanted:
            again = world.row(row, shard, part, output="second try", batch_id=batch_id)
            writer.append([[again], world.batch(batch_id, 1)])
            batch_id += 1
        while writer.num_ripe:
            writer.publish_ripe()
    writer.finish()


@pytest.mark.parametrize("step", WRITER_STEPS)
@pytest.mark.parametrize("count", [1, 3])
def test_a_kill_at_each_step_changes_nothing(world: Any, step: str, count: int) -> None:
    order = [*range(0, 19, 2), *range(1, 19, 2)]
    with suppress(Killed):
        Sitting(world, CrashPoints(step, count, _kill)).run(order, [3, 1], extents_first=True)
    Sitting(world).run(order, [3, 1], extents_first=True)
    check(world)


@pytest.mark.parametrize("step", WRITER_STEPS)
def test_a_kill_while_recovering_changes_nothing(world: Any, step: str) -> None:
    order = list(range(19))
    with suppress(Killed):
        Sitting(world, CrashPoints("journal_append", 5, _kill)).run(order, [1], extents_first=False)
    with suppress(Killed):
        Sitting(world, CrashPoints(step, 1, _kill)).writer.recover()
    Sitting(world).run(order, [2], extents_first=True)
    check(world)


PROGRAM = """
from pathlib import Path
import pyarrow as pa
from batchgen.output.columns import PartColumns, output_schema
from batchgen.output.layout import RunLayout
from batchgen.output.lock import RunLock
from batchgen.output.manifest import mark_success, write_manifest
from batchgen.output.store import OutputStore
from batchgen.records import FinishedRow, PartExtent
from batchgen.stats.batch import BatchRecord

KEPT = pa.schema([("id", pa.int64())])

class Kept:
    def read(self, shard, start, source_start, num_rows, extent):
        return pa.table({"id": list(range(start, start + num_rows))}, schema=KEPT)

layout = RunLayout(Path(path))
with RunLock(layout):
    columns = PartColumns.of(output_schema(KEPT), "")
    store = OutputStore(layout, columns, Kept(), fingerprint="f")
    store.recover()
    with store:
        batch_id = store.state.next_batch_id
        for start in range(0, 100, 25):
            if (info := store.state.parts.get(("a", start))) and info.complete:
                continue
            done = set(store.state.done_rows("a", start).tolist())
            store.open_part("a", start, None)
            shard_rows = 100 if start == 75 else None
            store.extent(PartExtent("a", start, 25, None, None, "d", shard_rows))
            rows = [FinishedRow("a", row, start, f"reply {row}", "stop", 1, 1, run_id="r",
                                batch_id=batch_id)
                    for row in range(start, start + 25) if row not in done]
            store.rows(rows[:10])
            store.flush()
            store.rows(rows[10:])
            store.batch(BatchRecord("r", batch_id, "continuous", 0, "2026-01-31T00:00:00+00:00",
                                    1.0, len(rows), 0, 1, 0, 1))
            store.flush()
            batch_id += bool(rows)
    write_manifest(layout, {"counts": store.state.totals().to_dict()})
    mark_success(layout)
"""


@pytest.mark.parametrize("step", STEPS)
def test_a_process_killed_at_each_step_is_continued(
    tmp_path: Path, step: str, make_world: Any
) -> None:
    world = make_world(tmp_path / "run")
    program = f"path = {str(world.layout.path)!r}\n{PROGRAM}"
    killed = subprocess.run([sys.executable, "-c", program], env={VARIABLE: step}, check=False)
    assert killed.returncode == -signal.SIGKILL
    exec(program, {})
    rows = [(row["row"], row["id"], row["output"]) for row in world.outputs()]
    assert rows == [(row, row, f"reply {row}") for row in range(100)]
    assert verify(world.layout, {"a": 100}) == []
    assert world.layout.success.exists()
    assert world.journal_files() == []
    assert not list(world.layout.path.rglob("*.tmp"))


def test_an_unknown_step_is_refused() -> None:
    with pytest.raises(ValueError, match="no step 'part_wirtten'; there are"):
        CrashPoints("part_wirtten")
