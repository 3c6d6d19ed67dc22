"""What the journal holds beyond the parts, and which of its segments may go.

The writer keeps this up to date while it appends; a start after a kill, and a reader of a living
run, build the same by walking the segments. Of a row only the place of its frame is kept, so
memory does not grow with the texts that wait for their part.
"""

from collections.abc import Set
from dataclasses import dataclass, field

import numpy as np

from batchgen.output.journal import BatchFrame, ExtentFrame, Frame, FrameRef, RowsFrame
from batchgen.output.parts import PartInfo, PartKey
from batchgen.output.state import DirectoryState
from batchgen.records import PartExtent


class RowSet:
    """Which rows of a part are done: a bit map from the part's first row on."""

    def __init__(self, start_row: int, rows: np.ndarray | None = None) -> None:
        self._start = start_row
        self._is_done = np.zeros(64, dtype=bool)
        if rows is not None:
            self.add(rows)

    def add(self, rows: np.ndarray) -> None:
        """Note rows (numbers in the shard) as done."""
        if len(rows) == 0:
            return
        offsets = rows - self._start
        needed = int(offsets.max()) + 1
        if needed > len(self._is_done):
            grown = np.zeros(max(needed, 2 * len(self._is_done)), dtype=bool)
            grown[: len(self._is_done)] = self._is_done
            self._is_done = grown
        self._is_done[offsets] = True

    def covers(self, num_rows: int) -> bool:
        """Whether the first `num_rows` rows of the part are all done."""
        return num_rows <= len(self._is_done) and bool(self._is_done[:num_rows].all())

    def rows(self) -> np.ndarray:
        """The rows that are done, ascending."""
        return np.flatnonzero(self._is_done) + self._start


@dataclass(slots=True)
class OpenPart:
    """A part with journal records that are not in its file, or that some will come for."""

    key: PartKey
    source_start: int | None
    info: PartInfo | None
    """The footer of its file; None without a file."""
    extent: PartExtent | None
    done: RowSet
    """Rows in the file and in the journal."""
    seq: int
    """Highest sequence number of its records, those in the file included."""
    refs: list[FrameRef] = field(default_factory=list)
    ref_rows: list[int] = field(default_factory=list)
    """Rows of each of `refs`."""
    num_new: int = 0
    """Rows of all of them."""
    awaited: set[int] | None = None
    """Rows that will be done again; None: none are announced."""

    @property
    def is_changed(self) -> bool:
        """Whether the journal holds anything that the file does not."""
        return self.seq > (0 if self.info is None else self.info.seq)

    @property
    def is_bare(self) -> bool:
        """Whether it was read to its end, and none of its rows has come: no file is due yet."""
        if self.info is not None or self.refs or self.extent is None:
            return False
        return self.extent.num_rows > 0

    @property
    def is_ripe(self) -> bool:
        """Whether every row is there, and no other record is expected soon.

        Rows of a complete part that are done again without an announcement are published at the
        end of the run: each of them might be the last one.
        """
        if self.extent is None or self.awaited or not self.is_changed:
            return False
        info = self.info
        if self.num_new + (0 if info is None else info.num_rows) < self.extent.num_rows:
            return False
        if info is not None and info.complete and info.extent == self.extent:
            return self.awaited is not None
        return self.done.covers(self.extent.num_rows)


@dataclass(slots=True)
class _SegmentUse:
    """Why a segment is still needed."""

    parts: set[PartKey] = field(default_factory=set)
    batches: set[int] = field(default_factory=set)


class Unpublished:
    """Everything journaled that stands in no file yet."""

    def __init__(self, state: DirectoryState) -> None:
        self._state = state
        self.parts: dict[PartKey, OpenPart] = {}
        self.batches: dict[int, BatchFrame] = {}
        self._segments: dict[int, _SegmentUse] = {}
        self.seq = state.last_seq
        """Highest sequence number in the directory."""

    def part(self, key: PartKey, source_start: int | None = None) -> OpenPart:
        """The part with this key, opened if it is not."""
        part = self.parts.get(key)
        if part is None:
            info = self._state.parts.get(key)
            part = self.parts[key] = OpenPart(
                key=key,
                source_start=source_start if info is None else info.source_start,
                info=info,
                extent=None if info is None else info.extent,
                done=RowSet(key.start_row, self._state.done_rows(*key)),
                seq=0 if info is None else info.seq,
            )
        if part.source_start is None:
            part.source_start = source_start
        return part

    def begin_segment(self, segment: int) -> None:
        """A segment exists, whether or not it holds anything of use."""
        self._segments.setdefault(segment, _SegmentUse())

    def knows_segment(self, segment: int) -> bool:
        """Whether the segment exists and has not been released."""
        return segment in self._segments

    def note(self, ref: FrameRef, frame: Frame) -> None:
        """A frame stands in the journal; what its part's file holds already is passed over."""
        self.begin_segment(ref.segment)
        use = self._segments[ref.segment]
        match frame:
            case RowsFrame():
                use.batches.update(frame.column("batch_id"))
                self.seq = max(self.seq, frame.last_seq)
                self._note_rows(ref, frame, use)
            case ExtentFrame():
                self.seq = max(self.seq, frame.seq)
                part = self.part(PartKey(frame.shard, frame.part_start))
                if frame.seq > part.seq:
                    part.seq, part.extent = frame.seq, frame.extent
                    use.parts.add(part.key)
            case BatchFrame():
                self.seq = max(self.seq, frame.seq)
                use.batches.add(frame.record.batch_id)
                self.batches[frame.record.batch_id] = frame

    def _note_rows(self, ref: FrameRef, frame: RowsFrame, use: _SegmentUse) -> None:
        part = self.part(PartKey(frame.shard, frame.part_start), frame.source_start)
        if frame.last_seq <= (0 if part.info is None else part.info.seq):
            return
        part.seq = frame.last_seq
        part.refs.append(ref)
        part.ref_rows.append(len(frame.rows))
        part.num_new += len(frame.rows)
        part.done.add(np.asarray(frame.rows, dtype=np.int64))
        if part.awaited is not None:
            part.awaited.difference_update(frame.rows)
        use.parts.add(part.key)

    def part_published(self, info: PartInfo, num_refs: int) -> None:
        """A part's file holds the records of its first `num_refs` frames now."""
        part = self.parts[info.key]
        part.info = info
        if len(part.refs) > num_refs or part.seq > info.seq:
            del part.refs[:num_refs], part.ref_rows[:num_refs]
            part.num_new = sum(part.ref_rows)
            return
        part.extent = info.extent
        part.refs, part.ref_rows, part.num_new = [], [], 0
        for use in self._segments.values():
            use.parts.discard(info.key)
        if info.complete and not part.awaited:
            del self.parts[info.key]

    def forget(self, key: PartKey) -> None:
        """A part will get no file: the next run reads it from its start."""
        del self.parts[key]
        for use in self._segments.values():
            use.parts.discard(key)

    def batches_published(self, ids: Set[int]) -> None:
        """These batches are in `batches/` now."""
        for use in self._segments.values():
            use.batches -= ids
        for batch_id in self.batches.keys() & ids:
            del self.batches[batch_id]

    def release_segments(self, current: int | None) -> list[int]:
        """Segments that nothing needs any more, all but the `current` one; forgets them."""
        free = [
            segment
            for segment, use in self._segments.items()
            if segment != current and not use.parts and not use.batches
        ]
        for segment in free:
            del self._segments[segment]
        return free
