"""Arrow columns as numpy arrays, without pandas.

`to_numpy` of pyarrow, and whatever else makes Arrow out of Python values or the other way round,
loads pandas, which takes longer than all that a report of a small run does. So arithmetic on
columns is done in numpy, which reads Arrow's memory as it is.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats = npt.NDArray[np.float64]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def floats(column: pa.ChunkedArray) -> Floats:
    """A column of numbers or times (microseconds); NaN where it is null."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    chunks = [_chunk(chunk) for chunk in column.cast(pa.float64()).chunks if len(chunk)]
    return np.concatenate(chunks) if chunks else np.empty(0)


def _chunk(chunk: pa.Array) -> Floats:
    validity, data = chunk.buffers()
    end = chunk.offset + len(chunk)
    values = np.frombuffer(data, np.float64, count=end)[chunk.offset :]
    if not chunk.null_count:
        return values
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), count=end, bitorder="little")
    return np.where(bits[chunk.offset :], values, np.nan)


def moment_of(microseconds: float) -> datetime:
    """The time that a column of times means by this number."""
    return EPOCH + timedelta(microseconds=microseconds)


def total(values: Floats) -> float | None:
    """The sum of what is known; None where nothing is."""
    known = values[np.isfinite(values)]
    return float(known.sum()) if len(known) else None


def highest(values: Floats) -> float | None:
    """The largest of what is known; None where nothing is."""
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else None


def whole(value: float | None) -> int | None:
    """A sum of counts as the whole number that it is."""
    return None if value is None else int(value)
