import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from batchgen.errors import DataError, EngineDied
from batchgen.output.parts import PartKey, read_part_info
from batchgen.output.store import QUEUE_ROWS, OutputStore
from batchgen.records import FinishedRow

KEY = PartKey("a.jsonl", 0)


@contextmanager
def limited_files() -> Iterator[None]:
    """No file may grow beyond 100 kB, as on a full disk.

    No fixture: pytest itself may write its report into a larger file while one is in force.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def opened(world: Any) -> OutputStore:
    store: OutputStore = world.store()
    store.recover()
    store.start()
    return store


def run_into(problem: Exception, world: Any) -> None:
    """A run of three rows that ends like this."""
    with world.store() as store:
        store.rows(world.rows(0, 3))
        raise problem


def go_on(store: OutputStore, row: FinishedRow) -> None:
    """Hand this row over until that fails."""
    for _ in range(10_000):
        store.rows([row])
        store.flush()


def test_a_run_leaves_parts_and_batches(world: Any) -> None:
    with world.store() as store:
        store.open_part("a.jsonl", 0, 0)
        store.rows(world.rows(0, 3))
        store.batch(world.batch(0, 3))
        store.extent(world.extent(3, shard_rows=3))
    assert read_part_info(world.layout.part(*KEY)).complete
    assert store.state.totals().num_rows == 3
    assert store.state.next_batch_id == 1
    assert store.write_seconds() > 0


def test_flushed_rows_are_in_the_journal(world: Any) -> None:
    store = opened(world)
    store.rows(world.rows(0, 3))
    store.flush()
    world.writer().recover()
    assert len(world.outputs()) == 3
    store.close(publish=False)


def test_a_complete_part_appears_while_the_run_goes_on(world: Any) -> None:
    store = opened(world)
    store.rows(world.rows(0, 3))
    store.extent(world.extent(3))
    while KEY not in store.state.parts:
        store.flush()
    assert len(world.outputs()) == 3
    store.close()


def test_closing_without_publishing_keeps_the_journal(world: Any) -> None:
    store = opened(world)
    store.rows(world.rows(0, 3))
    store.close(publish=False)
    assert world.outputs() == []
    assert world.store().recover() == []
    assert len(world.outputs()) == 3


def test_many_threads_hand_over_more_rows_than_the_queue_holds(world: Any) -> None:
    store = opened(world)

    def hand_over(part: int) -> None:
        for start in range(part, part + QUEUE_ROWS, 64):
            store.rows(world.rows(start, start + 64, part=part))
        store.extent(world.extent(QUEUE_ROWS, part=part))

    threads = [threading.Thread(target=hand_over, args=(part,)) for part in (0, QUEUE_ROWS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    assert [row["row"] for row in world.outputs()] == list(range(2 * QUEUE_ROWS))


def test_an_engine_that_is_gone_is_an_orderly_end(world: Any) -> None:
    with pytest.raises(EngineDied):
        run_into(EngineDied("gone"), world)
    assert len(world.outputs()) == 3


def test_an_unexpected_error_leaves_publishing_to_the_next_start(world: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        run_into(ZeroDivisionError(), world)
    assert world.outputs() == []
    world.store().recover()
    assert len(world.outputs()) == 3


def test_a_vanished_shard_is_raised_by_a_later_call_and_loses_nothing(world: Any) -> None:
    world.shards.gone.add("a.jsonl")
    store = opened(world)
    store.rows(world.rows(0, 3))
    store.extent(world.extent(3))
    with pytest.raises(DataError, match="put the file back"):
        go_on(store, world.row(0, "b.jsonl"))
    store.close()
    world.shards.gone.clear()
    assert world.store().recover() == []
    assert [row["row"] for row in world.outputs() if row["shard"] == "a.jsonl"] == [0, 1, 2]


def test_a_full_disk_is_raised_and_what_was_journaled_is_kept(world: Any) -> None:
    store = opened(world)
    store.rows(world.rows(0, 3))
    store.flush()
    with limited_files(), pytest.raises(DataError, match="cannot write"):
        go_on(store, world.row(3, output="x" * 200_000))
    store.close()
    world.store().recover()
    assert [row["row"] for row in world.outputs()] == [0, 1, 2]


def close_with_a_row_that_does_not_fit(world: Any) -> None:
    store = opened(world)
    with limited_files():
        store.rows([world.row(0, output="x" * 200_000)])
        store.close()


def test_a_failure_that_no_call_has_seen_is_raised_at_the_end(world: Any) -> None:
    with pytest.raises(DataError, match="cannot write"):
        close_with_a_row_that_does_not_fit(world)


def test_a_read_only_directory_is_named(world: Any) -> None:
    world.layout.path.parent.mkdir(exist_ok=True)
    world.layout.path.write_text("a file where the directory should be")
    with pytest.raises(DataError, match=str(world.layout.path)):
        world.store().start()


def test_a_mistake_in_our_own_code_does_not_hang_the_run(world: Any) -> None:
    store = opened(world)
    with pytest.raises(TypeError):
        go_on(store, world.row(0, error=object()))
    store.close()


def test_the_journal_is_synced_when_the_last_sync_is_a_second_old(world: Any) -> None:
    moment = [0.0]
    store = OutputStore(
        world.layout, world.columns, world.shards, fingerprint="print", now=lambda: moment[0]
    )
    store.start()
    moment[0] = 1.0
    store.rows(world.rows(0, 3))
    while not store.write_seconds() or not world.journal_files():
        pass
    store.close()
    assert len(world.outputs()) == 3
