from pathlib import Path

import pytest

from batchgen.config.models import InputConfig
from batchgen.corpus.shards import find_shards
from batchgen.errors import DataError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(*names):
    for name in names:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def names(*paths, exclude=None, format="auto"):
    config = InputConfig.model_validate({"paths": list(paths), "format": format})
    return [shard.name for shard in find_shards(config, exclude=exclude)]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("data", ["a.jsonl", "deep/b.parquet", "deep/er/c.csv"]),
        ("data/*.jsonl", ["a.jsonl"]),
        ("data/**/*.csv", ["deep/er/c.csv"]),
        ("data/**", ["a.jsonl", "deep/b.parquet", "deep/er/c.csv"]),
        ("data/d*/*.parquet", ["deep/b.parquet"]),
        ("data/d*", ["deep/b.parquet", "deep/er/c.csv"]),
        ("data/deep/b.parquet", ["b.parquet"]),
        ("./data/../data/a.jsonl", ["a.jsonl"]),
    ],
)
def test_a_name_is_relative_to_the_root_of_its_entry(folder, entry, expected):
    touch("data/a.jsonl", "data/deep/b.parquet", "data/deep/er/c.csv")
    touch("data/_SUCCESS.jsonl", "data/.hidden/x.jsonl", "data/deep/_tmp.parquet", "data/README.md")
    assert names(entry) == expected


def test_names_do_not_depend_on_the_working_directory(folder, monkeypatch):
    touch("data/deep/a.jsonl")
    before = names("data")
    monkeypatch.chdir(folder / "data")
    assert names(".") == names(str(folder / "data")) == before == ["deep/a.jsonl"]


def test_order_is_that_of_code_points(folder):
    touch("d/b.jsonl", "d/B.jsonl", "d/é.jsonl", "d/10.jsonl", "d/9.jsonl", "d/a/z.jsonl")
    expected = ["10.jsonl", "9.jsonl", "B.jsonl", "a/z.jsonl", "b.jsonl", "é.jsonl"]
    assert names("d") == expected


@pytest.mark.parametrize(
    ("name", "format", "compression"),
    [
        ("a.parquet", "parquet", None),
        ("a.pq", "parquet", None),
        ("a.JSONL", "jsonl", None),
        ("a.ndjson", "jsonl", None),
        ("a.json", "jsonl", None),
        ("a.b.jsonl.gz", "jsonl", "gzip"),
        ("a.json.zst", "jsonl", "zstd"),
        ("a.csv.gz", "csv", "gzip"),
    ],
)
def test_the_extension_tells_the_format(folder, name, format, compression):
    touch(name)
    (shard,) = find_shards(InputConfig.model_validate({"paths": [name]}))
    assert (shard.format, shard.compression) == (format, compression)


def test_a_configured_format_goes_before_the_extension(folder):
    touch("a.txt", "b.txt.gz")
    config = InputConfig.model_validate({"paths": ["*.txt*"], "format": "jsonl"})
    found = [(shard.format, shard.compression) for shard in find_shards(config)]
    assert found == [("jsonl", None), ("jsonl", "gzip")]


def test_a_file_that_is_reached_twice_counts_once(folder):
    touch("data/a.jsonl")
    assert names("data/a.jsonl", "data", "data/*.jsonl") == ["a.jsonl"]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (["x/docs.jsonl", "y/docs.jsonl"], ["x/docs.jsonl", "y/docs.jsonl"]),
        (["x", "y"], ["other.jsonl", "x/docs.jsonl", "y/docs.jsonl"]),
        (["p/same/d.jsonl", "q/same/d.jsonl"], ["p/same/d.jsonl", "q/same/d.jsonl"]),
    ],
)
def test_equal_names_are_told_apart_by_their_roots(folder, entries, expected):
    touch("x/docs.jsonl", "y/docs.jsonl", "y/other.jsonl", "p/same/d.jsonl", "q/same/d.jsonl")
    assert names(*entries) == expected
    assert names(*reversed(entries)) == expected


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("data/docs.jsnl", "no such file or directory: there is no 'docs.jsnl' in 'data'; did you"),
        ("dta/docs.jsonl", "there is no 'dta' in '.'; did you mean 'data'"),
        ("data/*.parquet", "nothing matches; 'data' holds 'docs.jsonl'"),
        ("none/*.parquet", "nothing matches: there is no 'none'"),
        ("empty", "no shard in this directory; 'empty' holds no files"),
        ("notes.md", "notes.md: the extension does not tell the format"),
        ("x.parquet.gz", "a compressed Parquet file cannot be read; decompress it"),
        ("s3://bucket/x.jsonl", "remote paths are not supported; copy or mount them"),
        ("gone.jsonl", "cannot read this file: No such file"),
    ],
)
def test_an_entry_that_gives_nothing_says_why(folder, entry, message):
    touch("data/docs.jsonl", "notes.md", "x.parquet.gz")
    Path("empty").mkdir()
    Path("gone.jsonl").symlink_to("nowhere")
    with pytest.raises(DataError) as caught:
        names(entry)
    assert message in str(caught.value)
    assert entry in str(caught.value)


def test_all_problems_are_reported_at_once(folder):
    touch("notes.md")
    with pytest.raises(DataError) as caught:
        names("one.jsonl", "notes.md", "gs://two")
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("entry", "output"), [(".", "runs/x"), ("**", "out"), ("*", "out"), ("**/*.parquet", "out")]
)
def test_an_output_inside_the_input_is_refused_before_it_exists(folder, entry, output):
    touch("a.jsonl")
    with pytest.raises(DataError, match="output inside input"):
        names(entry, exclude=Path(output))


@pytest.mark.parametrize(("entry", "output"), [("*.jsonl", "out"), ("data", "out"), (".", ".out")])
def test_an_output_beside_the_input_is_fine(folder, entry, output):
    touch("a.jsonl", "data/a.jsonl")
    assert names(entry, exclude=Path(output))


def test_links_that_lead_in_circles_end(folder):
    touch("d/a.jsonl")
    Path("d/again").symlink_to(folder / "d")
    assert names("d") == ["a.jsonl"]


def test_a_file_name_that_is_not_unicode_is_refused(folder):
    Path("bad\udcff.jsonl").write_bytes(b"")
    with pytest.raises(DataError, match="not valid UTF-8"):
        names("*.jsonl")
