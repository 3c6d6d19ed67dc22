"""Journals what finishes and publishes parts: one thread, the lock held, no waiting.

`OutputStore` runs this behind a queue. Steps are separate so that a test can end the process, or
raise, between any two of them.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from batchgen.errors import DataError, ResumeMismatch
from batchgen.output.batches import CrashedBatches, publish_batches, published_batch_ids
from batchgen.output.columns import (
    PartColumns,
    check_schema,
    clean_columns,
    load_schema,
    save_schema,
)
from batchgen.output.crashpoints import CrashPoints
from batchgen.output.disk import disk_error, make_folder, remove_temporaries
from batchgen.output.journal import (
    SEGMENT_BYTES,
    BatchFrame,
    ExtentFrame,
    Frame,
    JournalWriter,
    RowsFrame,
    SegmentReader,
    encode,
    list_segments,
    segment_path,
)
from batchgen.output.layout import RunLayout
from batchgen.output.parts import (
    KeptColumns,
    PartInfo,
    PartKey,
    ShardUnreadable,
)
from batchgen.output.publication import Publication
from batchgen.output.state import DirectoryState
from batchgen.output.unpublished import OpenPart, Unpublished
from batchgen.records import FinishedRow, PartExtent
from batchgen.stats.batch import BatchRecord

FRAME_ROWS = 4096
"""Most rows of one frame: what a torn tail can take with it, and what one decode makes."""


class PartOpening(NamedTuple):
    """A part will get rows. `redo`: rows of it that will be done again, if that is known."""

    shard: str
    part_start: int
    source_start: int | None
    redo: Collection[int] | None = None


class PartReopening(NamedTuple):
    """The end of a part that was complete is not known any more: its shard has grown."""

    shard: str
    start_row: int


Item = list[FinishedRow] | BatchRecord | PartExtent | PartOpening | PartReopening
"""What a writer is told, in the order in which it happened."""


class Writer:
    """The journal and the parts of one directory."""

    def __init__(
        self,
        layout: RunLayout,
        columns: PartColumns,
        kept: KeptColumns,
        *,
        fingerprint: str,
        feed: str,
        segment_bytes: int = SEGMENT_BYTES,
        crash: CrashPoints | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._layout = layout
        self._columns = columns
        self._is_journaled = columns.journaled()
        self._kept = kept
        self._fingerprint = fingerprint
        self._feed = feed
        self._segment_bytes = segment_bytes
        self._crash = crash or CrashPoints()
        self._wall_clock = wall_clock
        self.state = DirectoryState.scan(layout, columns.prefix)
        self._unpublished = Unpublished(self.state)
        self._journal: JournalWriter | None = None
        self._ripe: dict[PartKey, None] = {}

    # A start after a kill

    def recover(self) -> list[str]:
        """Bring parts and batches up to the journal's end and empty it; what was unusual, in words.

        Writes nothing where nothing was left behind. Records of a shard that cannot be read stay
        in the journal, with a warning. Raises ResumeMismatch where other columns were written.
        """
        fixed = load_schema(self._layout)
        if fixed is not None:
            check_schema(fixed, self._columns.schema, str(self._layout.path))
        segments = list_segments(self._layout.journal)
        try:
            for folder in (self._layout.outputs, self._layout.batches):
                remove_temporaries(folder)
            crashed = CrashedBatches()
            warnings = [
                warning
                for segment in segments
                if (warning := self._replay(segment, crashed)) is not None
            ]
        except OSError as exc:
            raise disk_error(exc, self._layout.path) from exc
        if not segments:
            return []
        warnings += self._publish_all()
        self._close_crashed(crashed)
        self._drop_segments()
        return warnings

    def _replay(self, segment: int, crashed: CrashedBatches) -> str | None:
        reader = SegmentReader(self._layout.journal, segment)
        self._unpublished.begin_segment(segment)
        for ref, frame in reader:
            self._unpublished.note(ref, frame)
            if isinstance(frame, RowsFrame):
                crashed.note(frame)
        return reader.cut_torn_tail()

    def _close_crashed(self, crashed: CrashedBatches) -> None:
        published = published_batch_ids(self._layout)
        self._unpublished.batches_published(published)
        closed = published | self._unpublished.batches.keys()
        self._publish_batches(crashed.records(closed))

    # A run

    def start(self) -> None:
        """Get ready to journal; after `recover`."""
        if self._journal is not None:
            return
        for folder in (self._layout.outputs, self._layout.batches, self._layout.journal):
            make_folder(folder)
        if load_schema(self._layout) is None:
            save_schema(self._layout, self._columns.schema)
        segments = list_segments(self._layout.journal)
        self._journal = JournalWriter(
            self._layout.journal,
            first_segment=max(segments, default=0) + 1,
            segment_bytes=self._segment_bytes,
            crash=self._crash,
        )

    def reopen(self, shard: str, start_row: int) -> None:
        """Make a part incomplete whose shard has grown, at once and for good."""
        self.start()
        self.append([PartReopening(shard, start_row)])
        self.sync()
        self.state.reopen(shard, start_row)

    def append(self, items: Sequence[Item]) -> None:
        """Journal what has happened, in this order, with one write."""
        frames = [frame for frame in self._frames(items) if frame is not None]
        if not frames:
            return
        journal = self._running()
        before = journal.segment
        refs = journal.append([_encode(frame) for frame in frames])
        for ref, frame in zip(refs, frames, strict=True):
            self._unpublished.note(ref, frame)
            if not isinstance(frame, BatchFrame):
                self._touched(PartKey(frame.shard, frame.part_start))
        if journal.segment != before and self._unpublished.knows_segment(before):
            self._publish_batches()
            self._drop_segments()

    @property
    def is_synced(self) -> bool:
        """Whether all that was appended would survive a power cut."""
        return self._journal is None or self._journal.is_synced

    def sync(self) -> None:
        """Make all that was appended survive a power cut."""
        if self._journal is not None:
            self._journal.sync()

    @property
    def num_ripe(self) -> int:
        """Parts that wait for `publish_ripe`."""
        return len(self._ripe)

    def publish_ripe(self) -> None:
        """Publish one part whose rows are complete, if there is one."""
        publication = self.next_publication()
        if publication is not None:
            self.published(publication, publication.carry_out())

    def next_publication(self) -> Publication | None:
        """A part whose rows are complete, ready to be published by any thread; None without one."""
        if not self._ripe:
            return None
        key = next(iter(self._ripe))
        del self._ripe[key]
        return self._publication(self._unpublished.parts[key])

    def published(self, publication: Publication, info: PartInfo) -> None:
        """A publication was carried out: `info` is the part's footer now."""
        self.state.note(info)
        self._unpublished.part_published(info, len(publication.refs))
        self._drop_segments()

    def finish(self) -> None:
        """Publish everything that was journaled, incomplete parts too, and empty the journal.

        Raises DataError after the other parts where the kept columns of one cannot be read.
        """
        self.sync()
        self._ripe.clear()
        problems = self._publish_all()
        self._publish_batches()
        self.close()
        self._drop_segments()
        if problems:
            raise DataError(problems)

    def close(self) -> None:
        """Sync and close the journal; the next start publishes what it holds."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _running(self) -> JournalWriter:
        assert self._journal is not None, "start() comes first"
        return self._journal

    # Frames

    def _frames(self, items: Sequence[Item]) -> Iterator[Frame | None]:
        seq = self._unpublished.seq + 1
        for item in _coalesced(items):
            match item:
                case BatchRecord():
                    yield BatchFrame(seq, item)
                    seq += 1
                case PartExtent() | PartReopening():
                    frame = self._extent_frame(item, seq)
                    yield frame
                    seq += frame is not None
                case PartOpening():
                    self._open(item)
                case _:
                    for rows in self._rows_frames(item, seq):
                        yield rows
                        seq = rows.last_seq + 1

    def _open(self, item: PartOpening) -> None:
        part = self._unpublished.part(PartKey(item.shard, item.part_start), item.source_start)
        if item.redo is not None:
            part.awaited = (part.awaited or set()) | set(item.redo)

    def _extent_frame(self, item: PartExtent | PartReopening, seq: int) -> ExtentFrame | None:
        part = self._unpublished.part(PartKey(item.shard, item.start_row))
        extent = item if isinstance(item, PartExtent) else None
        if part.extent == extent and (part.info is not None or part.seq > 0):
            return None
        return ExtentFrame(seq, item.shard, item.start_row, extent)

    def _rows_frames(self, rows: Sequence[FinishedRow], seq: int) -> Iterator[RowsFrame]:
        at = self._wall_clock()
        for columns in _columns_by_part(rows):
            shard, part_start = columns[0][0], columns[2][0]
            self._check_outputs(columns[3])
            wanted = (
                values if is_journaled else None
                for values, is_journaled in zip(
                    (columns[1], *columns[3:]), self._is_journaled, strict=True
                )
            )
            source_start = self._unpublished.part(PartKey(shard, part_start)).source_start
            yield RowsFrame(shard, part_start, source_start, seq, at, self._feed, list(wanted))
            seq += len(columns[0])

    def _check_outputs(self, outputs: Sequence[Any]) -> None:
        """Refuse rows that could be journaled, but never published."""
        kinds = set(map(type, outputs))
        if list in kinds and not self._columns.is_many:
            raise DataError(
                "sampling.n: these outputs hold one completion a row; several need another "
                "output.path"
            )

    # Files

    def _touched(self, key: PartKey) -> None:
        if self._unpublished.parts[key].is_ripe:
            self._ripe[key] = None

    def _publish(self, part: OpenPart) -> None:
        publication = self._publication(part)
        info = publication.carry_out()
        self.state.note(info)
        self._unpublished.part_published(info, len(publication.refs))

    def _publication(self, part: OpenPart) -> Publication:
        self.sync()
        return Publication(
            layout=self._layout,
            columns=self._columns,
            kept=self._kept,
            fingerprint=self._fingerprint,
            crash=self._crash,
            key=part.key,
            old=part.info,
            source_start=part.source_start,
            seq=part.seq,
            extent=part.extent,
            refs=tuple(part.refs),
        )

    def _publish_all(self) -> list[str]:
        problems: list[str] = []
        changed: list[str] = []
        for key in sorted(self._unpublished.parts):
            part = self._unpublished.parts[key]
            if not part.is_changed:
                continue
            if part.is_bare:
                self._unpublished.forget(key)
                continue
            try:
                self._publish(part)
            except ResumeMismatch as exc:
                changed += exc.problems
            except ShardUnreadable as exc:
                problems += exc.problems
        if changed:
            raise ResumeMismatch(list(dict.fromkeys(changed)))
        return problems

    def _publish_batches(self, more: Iterable[BatchRecord] = ()) -> None:
        self.sync()
        records = [*(frame.record for frame in self._unpublished.batches.values()), *more]
        publish_batches(self._layout, records, seq=self._unpublished.seq, crash=self._crash)
        ids = {record.batch_id for record in records}
        self._unpublished.batches_published(ids)
        self.state.next_batch_id = max(self.state.next_batch_id, *(i + 1 for i in ids), 0)

    def _drop_segments(self) -> None:
        current = None if self._journal is None else self._journal.segment
        for segment in self._unpublished.release_segments(current):
            path = segment_path(self._layout.journal, segment)
            try:
                path.unlink(missing_ok=True)
            except OSError as exc:
                raise disk_error(exc, path) from exc
            self._crash.reach("segment_deleted")


def _coalesced(items: Sequence[Item]) -> Iterator[Item]:
    """The same items, with rows that follow each other as one."""
    rows: list[FinishedRow] = []
    for item in items:
        if isinstance(item, list):
            rows += item
            continue
        if rows:
            yield rows
            rows = []
        yield item
    if rows:
        yield rows


def _columns_by_part(rows: Sequence[FinishedRow]) -> Iterator[list[tuple[Any, ...]]]:
    """Columns of FinishedRow for each part, frame by frame; one part's rows keep their order."""
    groups: dict[tuple[str, int], list[FinishedRow]] = {}
    if len({(row[0], row[2]) for row in rows}) == 1:
        groups[rows[0][0], rows[0][2]] = list(rows)
        rows = ()
    for row in rows:
        groups.setdefault((row[0], row[2]), []).append(row)
    for group in groups.values():
        for start in range(0, len(group), FRAME_ROWS):
            yield list(zip(*group[start : start + FRAME_ROWS], strict=True))


def _encode(frame: Frame) -> bytes:
    try:
        return encode(frame)
    except TypeError:
        if not isinstance(frame, RowsFrame):
            raise
        return encode(frame._replace(columns=clean_columns(frame.columns)))
