"""The one writer of a run: takes finished rows off the loop's hands and loses none of them.

The loop that keeps the engine busy must not wait for a disk, so what it hands over goes on a
bounded queue and a thread does the rest: append to the journal, sync it when the last sync is a
second old. A second thread publishes the parts whose rows are complete, one after another, so
that a large part does not keep finished rows out of the journal. Neither holds texts: a part's
rows are read back from the journal when it is published.

A failure of the thread (disk full, a shard that vanished) is raised by the next call. Whatever was
journaled by then stays in the journal, and what is still handed over is journaled if that is
possible; the next start publishes it.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from batchgen.errors import BatchgenError, DataError
from batchgen.output.columns import PartColumns
from batchgen.output.crashpoints import CrashPoints
from batchgen.output.layout import RunLayout
from batchgen.output.parts import KeptColumns as KeptColumns
from batchgen.output.parts import PartInfo
from batchgen.output.publication import Publication
from batchgen.output.state import DirectoryState
from batchgen.output.writer import Item, PartOpening, Writer
from batchgen.records import FinishedRow, PartExtent
from batchgen.stats.batch import BatchRecord

SYNC_S = 1.0
"""Age of the last sync at which the journal is synced again."""
QUEUE_ROWS = 8192
"""Rows that wait for the thread at most; then a caller waits."""
LINGER_ROWS = 1024
LINGER_S = 0.05
"""The thread takes so many rows at once, or what has come within this time."""


class OutputStore:
    """Journal, parts and batches of a run directory; the caller holds its lock.

    `recover`, then `start`, then the calls from any thread, then `close`; as a context manager it
    starts, and closes if that was not done. After an unexpected error it only syncs: the next start
    publishes.
    """

    def __init__(
        self,
        layout: RunLayout,
        columns: PartColumns,
        kept: KeptColumns,
        *,
        fingerprint: str,
        feed: str = "unknown",
        crash: CrashPoints | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`fingerprint` goes into the footers, `feed` into the record of a batch cut by a kill."""
        self._writer = Writer(
            layout,
            columns,
            kept,
            fingerprint=fingerprint,
            feed=feed,
            crash=crash or CrashPoints.from_environment(),
        )
        self._now = now
        self._inbox = _Inbox(QUEUE_ROWS)
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._has_raised = False
        self._synced_at = now()
        self._write_s = 0.0
        self._publisher = ThreadPoolExecutor(1, thread_name_prefix="batchgen-publish")
        self._publishing: tuple[Publication, Future[tuple[PartInfo, float]]] | None = None
        self._num_taken = 0
        self._num_journaled = 0

    @property
    def state(self) -> DirectoryState:
        """What the directory holds; parts appear in it as they are published."""
        return self._writer.state

    def recover(self) -> list[str]:
        """Publish what a killed run left in the journal; warnings for the user.

        Touches nothing where nothing was left.
        """
        return self._writer.recover()

    def start(self) -> None:
        """Begin to take rows."""
        self._writer.start()
        self._thread = threading.Thread(target=self._work, name="batchgen-write", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if self._thread is None:
            return
        try:
            self.close(publish=problem is None or isinstance(problem, BatchgenError))
        except BatchgenError as exc:
            if problem is None:
                raise
            problem.add_note(str(exc))

    def open_part(
        self,
        shard: str,
        part_start: int,
        source_start: int | None,
        redo: Collection[int] | None = None,
    ) -> None:
        """Rows of this part will come; to be called before the first of them.

        `redo`: rows that have an output row and will be done again. The part is published when the
        last of them has come; without it a complete part is published again at the end only.
        """
        self._put(PartOpening(shard, part_start, source_start, redo))

    def reopen_part(self, shard: str, start_row: int) -> None:
        """The last part of a shard that has grown: complete no more, the rows of the shard unknown.

        To be called before `start`, so that `state` shows it at once; it is durable when this
        returns. The part's new extent comes when it was read again.
        """
        self._writer.reopen(shard, start_row)

    def rows(self, rows: Sequence[FinishedRow]) -> None:
        """Take finished rows. A later record of a row supersedes an earlier one."""
        self._put(rows if isinstance(rows, list) else list(rows), len(rows))
        self._num_taken += len(rows)

    def batch(self, record: BatchRecord) -> None:
        """Take the record of a batch, after all its rows."""
        self._put(record)

    def extent(self, extent: PartExtent) -> None:
        """A part was read to its end; with all its rows there, it is published."""
        self._put(extent)

    @property
    def num_unsaved(self) -> int:
        """Rows handed over that are not in the journal yet: a kill would lose them."""
        return self._num_taken - self._num_journaled

    def settle(self) -> None:
        """Return when no row that was handed over can be lost by a kill."""
        if self.num_unsaved:
            self._await(_Journaled())

    def flush(self) -> None:
        """Return when all that was handed over would survive a power cut."""
        self._await(threading.Event())

    def _await(self, reached: threading.Event) -> None:
        self._put(reached)
        while not reached.wait(0.1):
            self._raise_failure()
        self._raise_failure()

    def close(self, publish: bool = True) -> None:
        """Publish everything, incomplete parts too, and end; without `publish`, only sync.

        Call it once, at every orderly end. A failure of the thread that no call has raised yet is
        raised here; after one nothing is published, and the next start does that.
        """
        self._inbox.close()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._publisher.shutdown()
        began = time.perf_counter()
        try:
            if publish and self._failure is None:
                self._writer.finish()
        finally:
            self._writer.close()
            self._write_s += time.perf_counter() - began
        if not self._has_raised:
            self._raise_failure()

    def write_seconds(self) -> float:
        """Seconds spent journaling and publishing so far."""
        return self._write_s

    def _put(self, item: Item | threading.Event, num_rows: int = 0) -> None:
        self._raise_failure()
        self._inbox.put(item, num_rows)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._has_raised = True
            raise self._failure

    # The thread

    def _work(self) -> None:
        try:
            while not self._inbox.is_done:
                items = self._inbox.take(SYNC_S)
                began = time.perf_counter()
                self._handle(items, was_idle=not items)
                self._write_s += time.perf_counter() - began
            self._collect(wait=True)
        except Exception as problem:  # noqa: BLE001  (handed over to the callers, who raise it)
            self._failure = self._failure or problem
            self._inbox.close()

    def _handle(self, items: Sequence[Item | threading.Event], *, was_idle: bool) -> None:
        events = [item for item in items if isinstance(item, threading.Event)]
        flushes = [event for event in events if not isinstance(event, _Journaled)]
        news = [item for item in items if not isinstance(item, threading.Event)]
        try:
            self._writer.append(news)
            self._num_journaled += sum(len(item) for item in news if isinstance(item, list))
            for event in events:
                if isinstance(event, _Journaled):
                    event.set()
            now = self._now()
            if flushes or was_idle or now - self._synced_at >= SYNC_S:
                self._writer.sync()
                self._synced_at = now
            self._collect(wait=False)
            self._publish_next()
        except DataError as exc:
            self._failure = self._failure or exc
        finally:
            for event in events:
                event.set()

    def _publish_next(self) -> None:
        """Let the publishing thread begin with the next part, if it is free and one is ripe."""
        if self._publishing is not None or self._failure is not None:
            return
        publication = self._writer.next_publication()
        if publication is None:
            return
        future = self._publisher.submit(_timed, publication)
        self._publishing = publication, future
        future.add_done_callback(lambda _: self._inbox.wake())

    def _collect(self, *, wait: bool) -> None:
        """Note what the publishing thread has done; `wait` for it to end."""
        if self._publishing is None or not (wait or self._publishing[1].done()):
            return
        publication, future = self._publishing
        self._publishing = None
        info, seconds = future.result()
        self._write_s += seconds
        self._writer.published(publication, info)


def _timed(publication: Publication) -> tuple[PartInfo, float]:
    began = time.perf_counter()
    info = publication.carry_out()
    return info, time.perf_counter() - began


class _Journaled(threading.Event):
    """Set when all that stood before it in the queue is in the journal, synced or not."""


class _Inbox:
    """A queue bounded by rows. The taker gets all that is there, and not too little at once."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._items: list[Item | threading.Event] = []
        self._num_rows = 0
        self._is_urgent = False
        self._is_closed = False
        self._changed = threading.Condition()

    @property
    def is_done(self) -> bool:
        """Whether nothing is there and nothing will come."""
        return self._is_closed and not self._items

    def put(self, item: Item | threading.Event, num_rows: int) -> None:
        """Add an item; waits while the queue is full. After `close` nothing is taken any more."""
        with self._changed:
            while self._num_rows >= self._max_rows and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                return
            was_empty = not self._items
            self._items.append(item)
            self._num_rows += num_rows
            self._is_urgent |= isinstance(item, threading.Event)
            if was_empty or self._is_worth_taking():
                self._changed.notify_all()

    def take(self, timeout: float) -> Sequence[Item | threading.Event]:
        """All items; after `timeout` seconds without any an empty list.

        Few rows wait for company: a thread that wakes for every row would cost the engine's loop
        more than the rows do.
        """
        with self._changed:
            if not self._items and not self._is_worth_taking():
                self._changed.wait(timeout)
            if self._items:
                self._changed.wait_for(self._is_worth_taking, LINGER_S)
            items, self._items = self._items, []
            self._num_rows = 0
            self._is_urgent = False
            self._changed.notify_all()
        return items

    def wake(self) -> None:
        """Let the taker have what there is, be it nothing."""
        with self._changed:
            self._is_urgent = True
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing more will come."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _is_worth_taking(self) -> bool:
        return self._is_closed or self._is_urgent or self._num_rows >= LINGER_ROWS
