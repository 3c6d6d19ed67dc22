"""Shards in a temporary directory, and readers over them, for all tests of this room."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchgen.config.models import InputConfig
from batchgen.corpus.readers import PartLimits, read_blocks
from batchgen.corpus.shards import find_shards
from batchgen.records import RowBlock, Shard


@pytest.fixture
def limits() -> PartLimits:
    return PartLimits(
        max_rows=10_000, max_bytes=2**30, max_line_bytes=2**20, on_bad_line="error_row"
    )


@pytest.fixture
def shard_at() -> Callable[[Path], Shard]:
    def find(path: Path) -> Shard:
        return find_shards(InputConfig.model_validate({"paths": [str(path)]}))[0]

    return find


@pytest.fixture
def write_shard(tmp_path: Path, shard_at: Callable[[Path], Shard]) -> Callable[..., Shard]:
    """Write bytes, lines of text, or rows under a name whose extension tells the format."""

    def write(name: str, content: bytes | Sequence[Any], **parquet_options: Any) -> Shard:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, bytes) and name.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(list(content)), path, **parquet_options)
            return shard_at(path)
        if not isinstance(content, bytes):
            lines = [row if isinstance(row, str) else json.dumps(row) for row in content]
            content = "".join(f"{line}\n" for line in lines).encode()
        if name.endswith(".gz"):
            content = gzip.compress(content)
        if name.endswith(".zst"):
            content = pa.compress(content, "zstd", asbytes=True)
        path.write_bytes(content)
        return shard_at(path)

    return write


@pytest.fixture
def read(limits: PartLimits) -> Callable[..., list[RowBlock]]:
    def all_blocks(shard: Shard, *columns: str, **options: Any) -> list[RowBlock]:
        return list(read_blocks(shard, columns=columns, **{"limits": limits, **options}))

    return all_blocks
