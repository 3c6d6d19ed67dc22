"""The append-only record of what has finished, and the only thing that a kill may find half done.

The journal is a folder of segments, `00000001.log` and on. A segment is a row of frames:

    magic (4 bytes) · payload length (4) · CRC-32 of the payload (4) · payload (JSON)

What holds at every instant:

* Frames are only appended, by the holder of the lock alone. A frame is whole or it is the last one
  of its segment: the rest of a segment after the first bad frame is a torn tail and holds nothing.
* Every row, and every other record, has a sequence number. Numbers rise over the life of the
  directory, also across runs, so of two records of one row the later one is the truth.
* A part's footer says up to which number the records of its rows are in it. So a record may stand
  in the journal and in a part at once, and publishing again changes nothing.
* A segment is deleted only when all its rows are in parts, and each batch that it has rows of is
  in `batches/`. Before a new segment begins, the one before it is synced.

Rows are journaled column by column (`zip(*rows)`): encoding and decoding then cost a microsecond
a row, and publish gets the columns that Arrow wants.
"""

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from batchgen.errors import DataError
from batchgen.output.crashpoints import CrashPoints
from batchgen.output.disk import disk_error, sync_folder
from batchgen.records import FinishedRow, PartExtent
from batchgen.stats.batch import BatchRecord

SEGMENT_BYTES = 64 * 2**20
_MAGIC = b"bgj1"
_HEADER = struct.Struct("<4sII")


JOURNALED: Final = ("row", *FinishedRow._fields[3:])
"""Columns of a frame of rows, in order; the shard stands once in the frame."""


class FrameRef(NamedTuple):
    """Where a frame lies: its first byte, and the length of its payload."""

    segment: int
    offset: int
    length: int


class RowsFrame(NamedTuple):
    """Finished rows of one part. `columns` are `JOURNALED`, in order;
    None: not asked for."""

    shard: str
    part_start: int
    source_start: int | None
    seq: int
    """Sequence number of the first row; the others follow."""
    at: float
    """When it was written, seconds since the epoch."""
    feed: str
    columns: Sequence[Sequence[Any] | None]

    @property
    def rows(self) -> Sequence[int]:
        """Row numbers in the shard."""
        return self.column("row")

    def column(self, name: str) -> Sequence[Any]:
        """Values of a column that every job has, such as `row` or `run_id`."""
        values = self.columns[JOURNALED.index(name)]
        assert values is not None
        return values

    @property
    def last_seq(self) -> int:
        """Sequence number of the last row."""
        return self.seq + len(self.rows) - 1


class BatchFrame(NamedTuple):
    """A batch was closed."""

    seq: int
    record: BatchRecord


class ExtentFrame(NamedTuple):
    """A part was read to its end; with `extent` None its end is open again (a shard has grown)."""

    seq: int
    shard: str
    part_start: int
    extent: PartExtent | None


Frame = RowsFrame | BatchFrame | ExtentFrame


def encode(frame: Frame) -> bytes:
    """The payload of a frame.

    Raises TypeError where a text is not valid Unicode (lone surrogates).
    """
    match frame:
        case RowsFrame():
            return orjson.dumps({"rows": frame._asdict()}, option=orjson.OPT_SERIALIZE_NUMPY)
        case BatchFrame():
            return orjson.dumps({"batch": {"seq": frame.seq, "record": frame.record.to_dict()}})
        case ExtentFrame():
            extent = None if frame.extent is None else asdict(frame.extent)
            return orjson.dumps({"extent": {**frame._asdict(), "extent": extent}})


def decode(payload: bytes | memoryview) -> Frame:
    """The frame of a payload."""
    ((kind, values),) = orjson.loads(payload).items()
    match kind:
        case "rows":
            return RowsFrame(**values)
        case "batch":
            return BatchFrame(values["seq"], BatchRecord.from_dict(values["record"]))
        case "extent":
            extent = values["extent"]
            values["extent"] = None if extent is None else PartExtent(**extent)
            return ExtentFrame(**values)
    raise DataError(
        f"the journal holds a record of kind '{kind}', which this version of batchgen does not "
        "know; continue with the version that wrote it"
    )


class JournalWriter:
    """Appends frames to the newest segment. One thread, and the lock is held.

    Every `OSError` becomes a DataError, after the segment was cut back to its last whole frame.
    """

    def __init__(
        self,
        folder: Path,
        *,
        first_segment: int,
        segment_bytes: int = SEGMENT_BYTES,
        crash: CrashPoints | None = None,
    ) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._crash = crash or CrashPoints()
        self._descriptor: int | None = None
        self._size = 0
        self._is_synced = True
        self.segment = first_segment - 1
        """Number of the segment that is written to."""

    def append(self, payloads: Sequence[bytes]) -> list[FrameRef]:
        """Write frames, whole and in order; they survive a kill, and a power cut after `sync`."""
        try:
            if self._descriptor is None or self._size >= self._segment_bytes:
                self._begin_segment()
            refs, data = self._frames(payloads)
            self._write(data)
        except OSError as exc:
            raise disk_error(exc, segment_path(self._folder, self.segment)) from exc
        self._is_synced = False
        self._crash.reach("journal_append")
        return refs

    @property
    def is_synced(self) -> bool:
        """Whether everything appended would survive a power cut."""
        return self._is_synced

    def sync(self) -> None:
        """Make everything appended so far survive a power cut."""
        if self._is_synced or self._descriptor is None:
            return
        try:
            os.fdatasync(self._descriptor)
        except OSError as exc:
            raise disk_error(exc, segment_path(self._folder, self.segment)) from exc
        self._is_synced = True
        self._crash.reach("journal_synced")

    def close(self) -> None:
        """Sync and close. Appending again begins a new segment."""
        if self._descriptor is None:
            return
        self.sync()
        os.close(self._descriptor)
        self._descriptor = None

    def _begin_segment(self) -> None:
        self.close()
        self.segment += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(segment_path(self._folder, self.segment), flags, 0o644)
        self._size = 0
        sync_folder(self._folder)
        self._crash.reach("journal_rotated")

    def _frames(self, payloads: Sequence[bytes]) -> tuple[list[FrameRef], bytes]:
        refs: list[FrameRef] = []
        pieces: list[bytes] = []
        offset = self._size
        for payload in payloads:
            pieces += (_header(payload), payload)
            refs.append(FrameRef(self.segment, offset, len(payload)))
            offset += _HEADER.size + len(payload)
        return refs, b"".join(pieces)

    def _write(self, data: bytes) -> None:
        assert self._descriptor is not None
        if self._crash.awaits("journal_torn"):
            os.write(self._descriptor, data[:-1])
        self._crash.reach("journal_torn")
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)


@dataclass(slots=True)
class SegmentReader:
    """The whole frames of a segment, in order; `torn_bytes` is known after the last one."""

    folder: Path
    segment: int
    good_bytes: int = 0
    torn_bytes: int = 0

    @property
    def path(self) -> Path:
        """The segment's file."""
        return segment_path(self.folder, self.segment)

    def __iter__(self) -> Iterator[tuple[FrameRef, Frame]]:
        self.good_bytes = 0
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while (payload := _next_payload(file.read, size - self.good_bytes)) is not None:
                ref = FrameRef(self.segment, self.good_bytes, len(payload))
                self.good_bytes += _HEADER.size + len(payload)
                yield ref, decode(payload)
        self.torn_bytes = size - self.good_bytes

    def cut_torn_tail(self) -> str | None:
        """Remove what follows the last whole frame; says so. Only for the holder of the lock."""
        if self.torn_bytes == 0:
            return None
        with self.path.open("r+b") as file:
            file.truncate(self.good_bytes)
            os.fsync(file.fileno())
        return (
            f"{self.path}: cut {self.torn_bytes} bytes off its end, a record that was not written "
            "to its end; its rows are generated again"
        )


def _header(payload: bytes | memoryview) -> bytes:
    return _HEADER.pack(_MAGIC, len(payload), zlib.crc32(payload))


def _next_payload(read: Any, bytes_left: int) -> bytes | None:
    """The next payload, or None where no whole, intact frame follows."""
    header = read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    magic, length, checksum = _HEADER.unpack(header)
    if magic != _MAGIC or length > bytes_left - _HEADER.size:
        return None
    payload: bytes = read(length)
    return payload if len(payload) == length and zlib.crc32(payload) == checksum else None


def read_frames(folder: Path, refs: Sequence[FrameRef]) -> list[Frame]:
    """Frames that were appended before, in the order given. Raises DataError on a damaged one."""
    frames: list[Frame] = []
    by_segment: dict[int, int] = {}
    try:
        for ref in refs:
            if ref.segment not in by_segment:
                path = segment_path(folder, ref.segment)
                by_segment[ref.segment] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            data = os.pread(by_segment[ref.segment], ref.length + _HEADER.size, ref.offset)
            payload = memoryview(data)[_HEADER.size :]
            if data[: _HEADER.size] != _header(payload):
                raise DataError(
                    f"{segment_path(folder, ref.segment)}: damaged at byte {ref.offset}; check the "
                    "disk, and run the same command again: the lost rows are generated again"
                )
            frames.append(decode(payload))
    finally:
        for descriptor in by_segment.values():
            os.close(descriptor)
    return frames


def segment_path(folder: Path, segment: int) -> Path:
    """File of a segment."""
    return folder / f"{segment:08d}.log"


def list_segments(folder: Path) -> list[int]:
    """Numbers of the segments that exist, oldest first."""
    return sorted(int(path.stem) for path in folder.glob("*.log") if path.stem.isdecimal())
