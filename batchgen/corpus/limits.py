"""How a shard is cut into parts, where reading begins, and what is counted on the way."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartLimits:
    """Where parts end and what a bad line becomes; from the job's output and input sections."""

    max_rows: int
    """Rows of a part at most."""
    max_bytes: int
    """A part also ends with the row that brings its input to this many bytes."""
    max_line_bytes: int
    """A longer line is a bad one, and is never held in memory."""
    on_bad_line: str
    """`error_row`, `skip` or `fail`."""


@dataclass(frozen=True, slots=True)
class ReadPoint:
    """The start of a part: its first row and where it stands in the decompressed shard.

    Without an offset the rows before it are read and passed over. Parquet needs none.
    """

    row: int = 0
    source_offset: int | None = None


@dataclass(slots=True)
class ReadCounts:
    """Lines that are no rows, for the summary; counted up while reading."""

    blank_lines: int = 0
    skipped_lines: int = 0
    """Bad lines left out because of `on_bad_line: skip`."""
