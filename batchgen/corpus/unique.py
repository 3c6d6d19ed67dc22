"""`input.unique`: a column whose values must not repeat, over all shards.

Eight bytes of hash a row are kept and sorted, so a million rows take eight megabytes. Hashes that
occur twice are looked up in a second reading, which compares the values themselves.
"""

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from batchgen.corpus.limits import PartLimits
from batchgen.corpus.readers import read_blocks
from batchgen.errors import DataError
from batchgen.records import MISSING, Shard

_MOST_SHOWN = 5


def check_unique(shards: Sequence[Shard], column: str, limits: PartLimits) -> None:
    """Raise DataError where two rows have the same value in `column`, with the places of both.

    Rows without a value (null, missing, unreadable) are not compared.
    """
    hashes = array("Q", (_hash(value) for _, _, value in _values(shards, column, limits)))
    values = np.sort(np.frombuffer(hashes, dtype=np.uint64)) if hashes else np.empty(0)
    repeated = set(values[1:][values[1:] == values[:-1]].tolist())
    if not repeated:
        return
    first: dict[str, str] = {}
    problems: list[str] = []
    num_repeated = 0
    for shard, row, value in _values(shards, column, limits):
        if _hash(value) not in repeated:
            continue
        place = f"{shard} row {row}"
        before = first.setdefault(repr(value), place)
        if before == place:
            continue
        num_repeated += 1
        if len(problems) < _MOST_SHOWN:
            problems.append(
                f"input.unique: column '{column}' has {value!r} twice: {before} and {place}"
            )
    if num_repeated > len(problems):
        problems.append(f"input.unique: {num_repeated - len(problems)} more rows repeat a value")
    if problems:
        problems.append("give each row its own value, or leave input.unique out")
        raise DataError(problems)


def _values(
    shards: Sequence[Shard], column: str, limits: PartLimits
) -> Iterator[tuple[str, int, Any]]:
    for shard in shards:
        for block in read_blocks(shard, columns=[column], limits=limits):
            for index, value in enumerate(block.columns.get(column, ())):
                if isinstance(value, dict | list):
                    raise DataError(
                        f"input.unique: column '{column}' of {shard.name} row"
                        f" {block.start_row + index} is no plain value; choose another column"
                    )
                if value is not None and value is not MISSING and value == value:
                    yield shard.name, block.start_row + index, value


def _hash(value: Any) -> int:
    text = f"{type(value).__name__}\0{value!s}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
