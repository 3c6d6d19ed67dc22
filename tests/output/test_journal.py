import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen.errors import DataError
from batchgen.output.journal import (
    JOURNALED,
    BatchFrame,
    ExtentFrame,
    Frame,
    FrameRef,
    JournalWriter,
    RowsFrame,
    SegmentReader,
    decode,
    encode,
    list_segments,
    read_frames,
    segment_path,
)
from batchgen.records import PartExtent
from batchgen.stats.batch import BatchRecord


def rows_frame(seq: int, texts: list[str]) -> RowsFrame:
    columns: list[list[object] | None] = [None] * len(JOURNALED)
    columns[0] = list(range(len(texts)))
    columns[1] = list(texts)
    return RowsFrame("a.jsonl", 0, 0, seq, 1.5, "continuous", columns)


EXTENT = PartExtent("a.jsonl", 0, 3, 0, 99, "digest", 3)
RECORD = BatchRecord("run", 0, "generate", 0, "2026-01-31T00:00:00+00:00", 1.0, 3, 0, 1, None, 1)
FRAMES: list[Frame] = [
    rows_frame(1, ["a", "b"]),
    ExtentFrame(3, "a.jsonl", 0, EXTENT),
    BatchFrame(4, RECORD),
    ExtentFrame(5, "a.jsonl", 0, None),
    rows_frame(6, ["ü" * 1000]),
]


def write(folder: Path, frames: list[Frame], **options: int) -> list[FrameRef]:
    journal = JournalWriter(folder, first_segment=1, **options)  # type: ignore[arg-type]
    refs = [ref for frame in frames for ref in journal.append([encode(frame)])]
    journal.close()
    return refs


def read(folder: Path, segment: int = 1) -> list[Frame]:
    return [frame for _, frame in SegmentReader(folder, segment)]


@contextmanager
def limited_files() -> Iterator[None]:
    """No file may grow beyond 10 kB, as on a full disk.

    No fixture: pytest itself may write its report into a larger file while one is in force.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("frame", FRAMES)
def test_a_frame_survives_encoding(frame: Frame) -> None:
    assert decode(encode(frame)) == frame


def test_frames_come_back_in_order(tmp_path: Path) -> None:
    write(tmp_path, FRAMES)
    assert read(tmp_path) == FRAMES


def test_frames_are_found_again_by_their_place(tmp_path: Path) -> None:
    refs = write(tmp_path, FRAMES, segment_bytes=1)
    assert len(list_segments(tmp_path)) == len(FRAMES)
    assert read_frames(tmp_path, refs[::-1]) == FRAMES[::-1]


@settings(deadline=None)
@given(cut=st.integers(0, 5000), garbage=st.binary(max_size=40))
def test_any_torn_tail_leaves_the_whole_frames_before_it(
    cut: int, garbage: bytes, new_folder: Any
) -> None:
    with new_folder() as folder:
        refs = write(Path(folder), FRAMES)
        path = segment_path(Path(folder), 1)
        data = path.read_bytes()
        left = data[: max(0, len(data) - cut)]
        path.write_bytes(left + garbage)
        reader = SegmentReader(Path(folder), 1)
        frames = [frame for _, frame in reader]
        ends = [ref.offset + 12 + ref.length for ref in refs]
        num_whole = sum(end <= len(left) for end in ends)
        assert frames == FRAMES[:num_whole]
        assert reader.torn_bytes == len(left) + len(garbage) - reader.good_bytes


@settings(deadline=None)
@given(position=st.integers(0), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_read_as_data(position: int, bit: int, new_folder: Any) -> None:
    with new_folder() as folder:
        write(Path(folder), FRAMES)
        path = segment_path(Path(folder), 1)
        data = bytearray(path.read_bytes())
        data[position % len(data)] ^= 1 << bit
        path.write_bytes(data)
        frames = read(Path(folder))
        assert frames == FRAMES[: len(frames)]
        assert len(frames) < len(FRAMES)


def test_cutting_a_torn_tail_names_the_journal_and_the_bytes(tmp_path: Path) -> None:
    write(tmp_path, FRAMES)
    path = segment_path(tmp_path, 1)
    path.write_bytes(path.read_bytes() + b"bgj1half")
    reader = SegmentReader(tmp_path, 1)
    assert list(reader)
    warning = reader.cut_torn_tail()
    assert warning is not None
    assert warning.startswith(f"{path}: cut 8 bytes off its end")
    assert read(tmp_path) == FRAMES


def test_a_whole_segment_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, FRAMES)
    reader = SegmentReader(tmp_path, 1)
    assert list(reader)
    assert reader.cut_torn_tail() is None


def test_a_failed_write_leaves_whole_frames(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, first_segment=1)
    journal.append([encode(FRAMES[0])])
    with limited_files(), pytest.raises(DataError, match="Finished rows are kept"):
        journal.append([encode(rows_frame(2, ["x" * 20_000]))])
    journal.append([encode(FRAMES[1])])
    journal.close()
    assert read(tmp_path) == FRAMES[:2]


def test_a_record_of_a_newer_version_is_refused() -> None:
    with pytest.raises(DataError, match="the version that wrote it"):
        decode(b'{"hologram": {}}')


def test_a_damaged_frame_is_named(tmp_path: Path) -> None:
    refs = write(tmp_path, FRAMES)
    path = segment_path(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-3] + b"!!!")
    with pytest.raises(DataError, match="damaged at byte"):
        read_frames(tmp_path, refs)
