"""Whatever the input holds: no traceback, one output row per input row, a documented exit code."""

import csv
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow

many = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

texts = st.text(st.characters(codec="utf-8"), max_size=40)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
records = st.fixed_dictionaries({}, optional={"id": values, "text": values, "x": values})
lines = st.one_of(
    st.builds(lambda record: json.dumps(record).encode(), records),
    st.builds(lambda record: json.dumps(record).encode()[:-1], records),
    st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")),
    st.sampled_from([b"", b" ", b"{}", b"[1]", b'{"text": NaN}', b'{"text": "\\ud800"}']),
)


def judge(fuzz, case):
    """No problem of any kind."""
    with tempfile.TemporaryDirectory() as folder:
        verdict = fuzz.judge(case, Path(folder))
    assert verdict.problems == ()
    return verdict


@many
@given(st.lists(lines, max_size=20), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_every_line_of_jsonl_has_its_row(fuzz, lines, line_end, is_ended):
    data = line_end.join(lines) + (line_end if is_ended else b"")
    judge(fuzz, fuzz.Case("jsonl", {"a.jsonl": data}, rows={"a.jsonl": fuzz.expect_jsonl(data)}))


@many
@given(st.lists(texts, min_size=1, max_size=20))
def test_any_text_is_carried_along_unchanged(fuzz, texts):
    data = "".join(
        json.dumps({"text": "x", "kept": text}, ensure_ascii=False) + "\n" for text in texts
    ).encode()
    case = fuzz.Case("jsonl", {"a.jsonl": data}, rows={"a.jsonl": fuzz.expect_jsonl(data)})
    assert judge(fuzz, case).num_rows == len(texts)


@many
@given(
    st.lists(st.lists(texts, min_size=2, max_size=2), max_size=15),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
)
def test_every_record_of_csv_has_its_row(fuzz, records, quoting):
    file = io.StringIO(newline="")
    writer = csv.writer(file, quoting=quoting, lineterminator="\n")
    writer.writerows([["id", "text"], *records])
    data = file.getvalue().encode()
    rows = fuzz.expect_csv(data)
    assert rows is not None
    judge(fuzz, fuzz.Case("csv", {"a.csv": data}, rows={"a.csv": rows}))


@many
@given(st.binary(max_size=200))
def test_any_bytes_as_csv_end_as_documented(fuzz, data):
    case = fuzz.Case("csv", {"a.csv": b"text,id\n" + data}, may_be_unreadable=True)
    assert judge(fuzz, case).code in (0, 4, 6)


@pytest.fixture(scope="module")
def parquet_data():
    sink = io.BytesIO()
    table = pa.table({"text": [f"document {n}" for n in range(40)], "id": list(range(40))})
    pq.write_table(table, sink, row_group_size=16)
    return sink.getvalue()


@many
@given(st.data())
def test_parquet_that_is_cut_off_is_refused(fuzz, parquet_data, data):
    length = data.draw(st.integers(0, len(parquet_data) - 1))
    case = fuzz.Case("cut", {"a.parquet": parquet_data[:length]}, may_be_unreadable=True)
    assert judge(fuzz, case).code == 4


@many
@given(st.data())
def test_parquet_with_changed_bytes_ends_as_documented(fuzz, parquet_data, data):
    changed = bytearray(parquet_data)
    places = st.integers(0, len(parquet_data) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=4)):
        changed[place] = data.draw(st.integers(0, 255))
    case = fuzz.Case("changed", {"a.parquet": bytes(changed)}, may_be_unreadable=True)
    assert judge(fuzz, case).code in (0, 4, 6)


@many
@given(st.data(), st.sampled_from(["gz", "zst"]))
def test_compressed_lines_that_are_cut_off_are_refused(fuzz, data, extension):
    rows = b"".join(json.dumps({"text": f"document {n}"}).encode() + b"\n" for n in range(50))
    packed = {"gz": fuzz.gzip_bytes, "zst": fuzz.zstd_bytes}[extension](rows)
    length = data.draw(st.integers(1, len(packed) - 1))
    case = fuzz.Case("cut", {f"a.jsonl.{extension}": packed[:length]}, may_be_unreadable=True)
    assert judge(fuzz, case).code == 4


def test_the_fuzz_benchmark_finds_nothing(fuzz_script):
    command = [sys.executable, str(fuzz_script), "--inputs", "250", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["problems"] == 0, done.stdout
    assert set(result["exit_codes"]) == {"0", "4", "6"}
