import os
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen.errors import DataError
from batchgen.output.layout import RunLayout, part_name

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
PATHS = st.lists(st.sampled_from([*"-._/0:@AZ[^_`az{~ +,=}", "é", "\U0001f600", "docs"])).map(
    "".join
)


@pytest.mark.parametrize(
    ("shard", "name"),
    [
        ("docs.jsonl", "docs.jsonl+000000000000.parquet"),
        ("2024/docs-1.parquet", "2024.~docs-1.parquet+000000000000.parquet"),
        ("a b.jsonl", "a,20b.jsonl+000000000000.parquet"),
        ("lang=de/a.jsonl", "lang@3dde.~a.jsonl+000000000000.parquet"),
        ("_a", "^5fa+000000000000.parquet"),
        (".a", ",2ea+000000000000.parquet"),
        ("ü", "}c3}bc+000000000000.parquet"),
    ],
)
def test_part_name_escapes_what_a_file_name_should_not_hold(shard: str, name: str) -> None:
    assert part_name(shard, 0) == name


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.one_of(NAMES, PATHS.filter(bool)), st.integers(0, 10**11)), max_size=8)
)
def test_sorting_names_sorts_shards_and_rows(keys: list[tuple[str, int]]) -> None:
    by_key = [part_name(*key) for key in sorted(set(keys))]
    assert by_key == sorted(by_key)
    assert len(set(by_key)) == len(by_key)


@settings(deadline=None)
@given(st.lists(st.text("ab_/é", min_size=60, max_size=150), min_size=2, max_size=6, unique=True))
def test_long_names_keep_the_order_and_fit_the_file_system(shards: list[str]) -> None:
    names = [part_name(shard, 7) for shard in sorted(shards)]
    assert names == sorted(names)
    assert max(len(piece) for name in names for piece in name.split("/")) <= 230


@settings(deadline=None)
@given(st.one_of(NAMES, PATHS.filter(bool)))
def test_no_piece_of_a_name_is_hidden_or_a_partition_key(shard: str) -> None:
    pieces = part_name(shard, 0).split("/")
    assert not any(piece.startswith((".", "_", "-")) or "=" in piece for piece in pieces)


def test_dataset_readers_find_parts_with_odd_names(tmp_path: Path) -> None:
    shards = ["_hidden", ".dot", "lang=de/x", "x" * 500, "Ω", "plain"]
    layout = RunLayout(tmp_path)
    for shard in shards:
        path = layout.part(shard, 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"shard": [shard]}), path)
    frame = pd.read_parquet(layout.outputs)
    assert list(frame.columns) == ["shard"]
    assert list(frame["shard"]) == sorted(shards)


def test_a_name_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(DataError, match="rename the file"):
        part_name(os.fsdecode(b"\xff.jsonl"), 0)
