"""Lines of a text shard, plain, gzip or zstd: bytes up to each line feed, in bounded memory.

A line ends at a line feed and nowhere else: U+2028, U+0085, a lone CR or a form feed are data, and
general line splitters tear rows apart there. Offsets count decompressed bytes, so that a part of a
compressed shard has a place too. While lines are read they are hashed; the hash of a part tells
later whether these rows still are what they were.
"""

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

from batchgen.corpus.places import CHANGED, shown_path
from batchgen.errors import DataError
from batchgen.records import Shard

BUFFER_BYTES = 1 << 20
DAMAGED = (OSError, EOFError, zlib.error, pa.ArrowException)
"""What readers raise where a file is gone, cut off or damaged."""
BOM = b"\xef\xbb\xbf"


class LineSource:
    """The lines of one shard from an offset on. Close it, or read it to its end.

    Raises DataError where the file cannot be opened, is damaged, or ends before the offset.
    """

    def __init__(self, shard: Shard, *, offset: int, max_line_bytes: int) -> None:
        self.offset = offset
        """Just behind the last line that was read."""
        self._shard = shard
        self._max_line_bytes = max_line_bytes
        self._num_lines = 0
        self._lines_before: int | None = 0
        self._hash = blake2b(digest_size=16)
        try:
            self._stream = _open(shard)
            if offset:
                self._skip(offset)
        except DAMAGED as exc:
            raise unreadable(shard, exc) from exc

    def __iter__(self) -> Iterator[tuple[bytes | None, int]]:
        """Each line with its line feed, and its length; None for a line longer than allowed."""
        readline, update = self._stream.readline, self._hash_more
        longest = self._max_line_bytes + 1
        try:
            while line := readline(longest):
                num_bytes = len(line)
                update(line)
                if not line.endswith(b"\n") and num_bytes < longest:
                    update(b"\n")
                elif num_bytes == longest and not line.endswith(b"\n"):
                    yield None, self._pass_over(num_bytes)
                    continue
                self.offset += num_bytes
                self._num_lines += 1
                yield line, num_bytes
        except DAMAGED as exc:
            raise unreadable(self._shard, exc) from exc
        finally:
            self._stream.close()

    @property
    def line_number(self) -> int:
        """Number in the file, from 1, of the line that was read last."""
        if self._lines_before is None:
            self._lines_before = _count_line_feeds(self._shard, self._start)
        return self._lines_before + self._num_lines

    def take_digest(self) -> str:
        """Hash of all lines since the last call, or since the start.

        A last line without a line feed counts as if it had one, so that a file to which lines are
        appended still begins as it did.
        """
        digest = self._hash.hexdigest()
        self._hash = blake2b(digest_size=16)
        return digest

    def close(self) -> None:
        """Let the file go."""
        self._stream.close()

    def _hash_more(self, data: bytes) -> None:
        self._hash.update(data)

    def _pass_over(self, num_bytes: int) -> int:
        """Read the rest of a line that is too long, piece by piece; the whole line's length."""
        while piece := self._stream.readline(BUFFER_BYTES):
            self._hash.update(piece)
            num_bytes += len(piece)
            if piece.endswith(b"\n"):
                break
        else:
            self._hash.update(b"\n")
        self.offset += num_bytes
        self._num_lines += 1
        return num_bytes

    def _skip(self, offset: int) -> None:
        if self._shard.compression is None:
            num_bytes = os.fstat(self._stream.fileno()).st_size
            self._stream.seek(offset)
            self._lines_before, self._start = None, offset
        else:
            num_bytes = 0
            self._lines_before = 0
            while num_bytes < offset:
                piece = self._stream.read(min(BUFFER_BYTES, offset - num_bytes))
                if not piece:
                    break
                num_bytes += len(piece)
                self._lines_before += piece.count(b"\n")
        if num_bytes < offset:
            raise DataError(
                f"{shown_path(self._shard)}: has {num_bytes} bytes of text, and {offset} were read"
                f" before; {CHANGED}"
            )


def _open(shard: Shard) -> BinaryIO:
    """A buffered stream of the decompressed bytes; concatenated members are one stream."""
    if shard.compression == "gzip":
        return cast(BinaryIO, io.BufferedReader(gzip.open(shard.path), BUFFER_BYTES))
    if shard.compression == "zstd":
        compressed = pa.CompressedInputStream(pa.OSFile(shard.path), "zstd")
        return cast(BinaryIO, io.BufferedReader(compressed, BUFFER_BYTES))
    return Path(shard.path).open("rb", buffering=BUFFER_BYTES)


def unreadable(shard: Shard, error: BaseException) -> DataError:
    """What a failure to read means for the user."""
    if isinstance(error, OSError) and error.errno is not None:
        return DataError(
            f"{shown_path(shard)}: cannot read this file: {error.strerror}; is it still there, and"
            " readable for this user?"
        )
    test = {"gzip": "; check it with 'gzip -t'", "zstd": "; check it with 'zstd -t'"}
    return DataError(
        f"{shown_path(shard)}: the file is cut off or damaged ({error}); copy it again"
        f"{test.get(shard.compression or '', '')}"
    )


def _count_line_feeds(shard: Shard, end: int) -> int:
    try:
        with Path(shard.path).open("rb") as stream:
            num_lines, left = 0, end
            while left and (piece := stream.read(min(BUFFER_BYTES, left))):
                num_lines += piece.count(b"\n")
                left -= len(piece)
            return num_lines
    except OSError as exc:
        raise unreadable(shard, exc) from exc
