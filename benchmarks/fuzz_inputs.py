"""Feeds malformed inputs to whole runs, thousands of them, and checks every output row.

Each input is a small job of its own, run in this one process with the simulated engine at no cost:
JSONL with broken lines, bytes that are no UTF-8, odd Unicode, huge lines, wrong types, deep
nesting; the same compressed, cut off or with bits turned over; weird CSV; Parquet of all types,
cut off or damaged. Of text inputs an oracle knows, by Python's own json and csv modules, what has
to become of each row, and compares: error type, the start of the output, kept columns. Of damaged
binary files it knows what is allowed: exit code 4 with a sentence that names the file, or a
sound output.

What must hold of each: no exception but a BatchgenError; the documented exit code (0, 6 with
failed rows, 4 for a file that cannot be read); one output row per input row; `verify` finds
nothing; the same job again finds nothing new and ends with the same code.

    python benchmarks/fuzz_inputs.py                       # 10,000 inputs, some ten minutes
    python benchmarks/fuzz_inputs.py --inputs 500 --seed 7
    python benchmarks/fuzz_inputs.py --seed 1 --only 4711  # one of them again, its files kept
"""

import argparse
import csv
import gzip
import io
import json
import math
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unicodedata import category

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.config.models import JobConfig
from batchgen.errors import BatchgenError, DataError
from batchgen.output.layout import RunLayout
from batchgen.output.reading import part_files
from batchgen.run.job import run_job
from batchgen.run.verifying import verify_run

MAX_MODEL_LEN = 200
MAX_LINE_BYTES = 20_000
OK = "ok"
BOM = b"\xef\xbb\xbf"
INVISIBLE = {"Zs", "Zl", "Zp", "Cc", "Cf"}
FAILED_EXIT, DATA_EXIT = 6, 4


@dataclass(frozen=True, slots=True)
class ExpectedRow:
    """What has to become of an input row."""

    outcomes: frozenset[str]
    """`ok` or an error type; several where the contract leaves it open."""
    text: str | None = None
    """The prompt, where it is ok."""
    kept: Mapping[str, Any] | None = None
    """The whole input record; None where it could not be read."""


@dataclass(frozen=True, slots=True)
class Case:
    """One input: files and the job over them."""

    kind: str
    files: Mapping[str, bytes]
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: Mapping[str, Sequence[ExpectedRow]] | None = None
    """By shard, where an oracle knows them."""
    may_be_unreadable: bool = False
    """The run may end with exit code 4."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the run ended, and everything that should not be."""

    code: int
    num_rows: int
    problems: tuple[str, ...]


# Running and judging


def judge(case: Case, folder: Path) -> Verdict:
    """Run a case in an empty folder and compare the outcome with what has to be."""
    data = folder / "data"
    data.mkdir()
    for name, content in case.files.items():
        (data / name).write_bytes(content)
    job = job_of(case, folder)
    try:
        code, num_rows, problems = _run(case, job, folder)
    except Exception:  # noqa: BLE001  (what is looked for)
        return Verdict(1, 0, (traceback.format_exc(),))
    return Verdict(code, num_rows, tuple(problems))


def job_of(case: Case, folder: Path) -> JobConfig:
    """The job of a case."""
    sections: dict[str, dict[str, Any]] = {
        "input": {"paths": [str(folder / "data")], "max_line_bytes": MAX_LINE_BYTES},
        "prompt": {"template": "{{ text }}"},
        "model": {
            "engine": "simulated",
            "max_model_len": MAX_MODEL_LEN,
            "max_num_seqs": 8,
            "extra": {"zero_cost": True},
        },
        "sampling": {"max_tokens": 16, "temperature": 0.0},
        "output": {"path": str(folder / "out"), "rows_per_part": 7},
        "errors": {"stop_at": None},
    }
    for name, values in case.sections.items():
        sections[name] = {**sections.get(name, {}), **values}
    return JobConfig.model_validate(sections)


def _run(case: Case, job: JobConfig, folder: Path) -> tuple[int, int, list[str]]:
    try:
        summary = run_job(job)
    except BatchgenError as exc:
        return exc.exit_code, 0, _refusal_problems(case, exc)
    problems: list[str] = []
    layout = RunLayout(folder / "out")
    tables = [pq.ParquetFile(file).read() for file in part_files(layout)]
    if any(table.schema != tables[0].schema for table in tables):
        problems.append("parts have different schemas")
    tables = [_compared(table, case) for table in tables]
    rows = [row for table in tables for row in table.to_pylist()]
    num_failed = sum(row["error_type"] is not None for row in rows)
    if summary.exit_code != (FAILED_EXIT if num_failed else 0):
        problems.append(f"exit code {summary.exit_code} with {num_failed} failed rows")
    if (summary.num_rows, summary.num_failed) != (len(rows), num_failed):
        problems.append(f"the summary counts {summary.num_rows} rows, {summary.num_failed} failed")
    if case.rows is not None:
        schema = tables[0].schema if tables else pa.schema([])
        problems += _row_problems(case.rows, rows, schema)
    report = verify_run(layout.path)
    problems += [f"verify: {line}" for line in (*report.problems, *report.notes)]
    again = run_job(job)
    if not again.nothing_new or again.exit_code != summary.exit_code:
        problems.append(f"run again: new rows {not again.nothing_new}, code {again.exit_code}")
    return summary.exit_code, len(rows), problems


def _compared(table: pa.Table, case: Case) -> pa.Table:
    """The columns that are looked at: kept ones only where an oracle knows them."""
    first = table.schema.get_field_index("shard")
    knows_kept = case.rows is not None and any(
        row.kept is not None for rows in case.rows.values() for row in rows
    )
    return table if knows_kept else table.select(range(first, table.num_columns))


def _refusal_problems(case: Case, error: BatchgenError) -> list[str]:
    if not isinstance(error, DataError):
        return [f"{type(error).__name__}: {error}"]
    if not case.may_be_unreadable and not _is_allowed_refusal(case):
        return [f"refused, but could be read: {error}"]
    names = (*case.files, "output.keep", "input.paths", "text")
    if not any(name in str(error) for name in names):
        return [f"a message that names nothing: {error}"]
    return []


def _is_allowed_refusal(case: Case) -> bool:
    """No row has the column `text`: a mistake that every row shares."""
    if case.rows is None:
        return False
    rows = [row for rows in case.rows.values() for row in rows if row.kept is not None]
    return bool(rows) and not any("text" in (row.kept or {}) for row in rows)


def _row_problems(
    expected: Mapping[str, Sequence[ExpectedRow]],
    rows: Sequence[Mapping[str, Any]],
    schema: pa.Schema,
) -> Iterator[str]:
    keys = [(shard, number) for shard in sorted(expected) for number in range(len(expected[shard]))]
    found = [(row["shard"], row["row"]) for row in rows]
    if keys != found:
        yield f"{len(keys)} rows expected, {len(found)} found; first other: " + str(
            next((pair for pair in zip(keys, found, strict=False) if pair[0] != pair[1]), None)
        )
        return
    for row in rows:
        want = expected[row["shard"]][row["row"]]
        place = f"{row['shard']}:{row['row']}"
        outcome = row["error_type"] or OK
        if outcome not in want.outcomes:
            yield f"{place}: {outcome} ({row['error']}) instead of {sorted(want.outcomes)}"
        elif outcome == OK and want.text is not None:
            if row["output"] != f"Reply to: {want.text[:40]}":
                yield f"{place}: says {row['output']!r} to {want.text[:40]!r}"
        elif outcome != OK and (row["output"] is not None or not row["error"]):
            yield f"{place}: a failed row with {row['output']!r} and the error {row['error']!r}"
        yield from _kept_problems(place, want.kept, row, schema)


def _kept_problems(
    place: str, kept: Mapping[str, Any] | None, row: Mapping[str, Any], schema: pa.Schema
) -> Iterator[str]:
    for column in schema:
        if column.name == "shard":
            return
        value = None if kept is None else kept.get(column.name)
        if not _is_kept(value, row[column.name], column):
            yield f"{place}: column '{column.name}' is {row[column.name]!r} of {value!r}"


def _is_kept(value: Any, stored: Any, column: pa.Field) -> bool:
    """Whether a JSON value was kept as its column's type allows."""
    if value is None or stored is None:
        return stored is None and (value is None or not _fits(value, column))
    if column.metadata and column.metadata.get(b"batchgen") == b"json":
        return _same(json.loads(stored), value, as_json=True)
    return _same(stored, float(value) if pa.types.is_floating(column.type) else value)


def _fits(value: Any, column: pa.Field) -> bool:
    if column.metadata and column.metadata.get(b"batchgen") == b"json":
        return True
    if pa.types.is_string(column.type):
        return isinstance(value, str) and _is_unicode(value)
    if pa.types.is_boolean(column.type):
        return isinstance(value, bool)
    if pa.types.is_integer(column.type):
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _same(one: Any, other: Any, *, as_json: bool = False) -> bool:
    """Whether two JSON values are equal in value and type, however deep they are.

    `as_json`: `one` comes from JSON, where NaN and infinities of `other` are null.
    """
    pairs = [(one, other)]
    while pairs:
        left, right = pairs.pop()
        if as_json and isinstance(right, float) and not math.isfinite(right):
            right = None
        if type(left) is not type(right):
            return False
        if isinstance(left, dict):
            if left.keys() != right.keys():
                return False
            pairs += [(left[key], right[key]) for key in left]
        elif isinstance(left, list):
            if len(left) != len(right):
                return False
            pairs += zip(left, right, strict=True)
        elif left != right and not (left != left and right != right):
            return False
    return True


# Oracles


def expect_jsonl(data: bytes) -> list[ExpectedRow]:
    """What has to become of the lines of a JSONL shard under the template `{{ text }}`."""
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    rows = []
    for number, line in enumerate(lines):
        text = line.removeprefix(BOM) if number == 0 else line
        if len(line) > MAX_LINE_BYTES:
            rows.append(ExpectedRow(frozenset({"bad_json"})))
        elif text.strip():
            rows.append(expect_line(text))
    return rows


def expect_line(line: bytes) -> ExpectedRow:
    """What has to become of one line."""
    bad = ExpectedRow(frozenset({"bad_json"}))
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return bad
    if not isinstance(record, dict):
        return bad
    return expect_record(record)


def expect_record(record: Mapping[str, Any]) -> ExpectedRow:
    """What has to become of a row that could be read."""

    def row(*outcomes: str, text: str | None = None) -> ExpectedRow:
        return ExpectedRow(frozenset(outcomes), text, record)

    if "text" not in record:
        return row("missing_column")
    value = record["text"]
    if value is None or value != value:
        return row("null_prompt")
    if isinstance(value, bytes):
        return row("bad_type")
    try:
        text = str(value)
    except (RecursionError, ValueError):
        return row("template_error")
    if all(category(char) in INVISIBLE for char in text):
        return row("empty_prompt")
    if not _is_unicode(text):
        return row("bad_type")
    if len(text.split()) > MAX_MODEL_LEN - 1:
        return row("prompt_too_long")
    return row(OK, text=text)


def expect_csv(data: bytes) -> list[ExpectedRow] | None:
    """The same for CSV; None where it is not UTF-8, or has no usable header."""
    try:
        text = data.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError:
        return None
    header: list[str] | None = None
    rows: list[ExpectedRow] = []
    for fields in _csv_records([f"{line}\n" for line in text.split("\n")]):
        if fields == []:
            continue
        if header is None:
            if fields is None or len(set(fields)) < len(fields):
                return None
            header = fields
        elif fields is None or len(fields) != len(header):
            rows.append(ExpectedRow(frozenset({"bad_json"})))
        else:
            rows.append(expect_record(dict(zip(header, fields, strict=True))))
    return None if header is None else rows


def _csv_records(lines: Sequence[str]) -> list[list[str] | None]:
    """Records of CSV; None for one that cannot be read, such as one whose quote stays open."""
    end = "the end of the file"
    reader = csv.reader([*lines, end])
    records: list[list[str] | None] = []
    while True:
        try:
            records.append(next(reader))
        except csv.Error:
            records.append(None)
        except StopIteration:
            break
    is_closed = records[-1] == [end]
    return records[:-1] if is_closed else [*records[:-1], None]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Inputs


def make_case(random_: random.Random) -> Case:
    """A malformed input of a random kind."""
    kinds: list[tuple[int, Callable[[random.Random], Case]]] = [
        (40, jsonl_case),
        (12, compressed_case),
        (10, csv_case),
        (14, damaged_parquet_case),
        (10, parquet_case),
        (6, column_case),
        (8, mixed_case),
    ]
    weights = [weight for weight, _ in kinds]
    make = random_.choices([make for _, make in kinds], weights)[0]
    return make(random_)


def jsonl_case(random_: random.Random) -> Case:
    """Lines of JSON, most of them odd or broken."""
    data = jsonl_bytes(random_)
    keep = random_.choice([None, None, ["id"], []])
    if keep and b'"id"' not in data:
        keep = []
    name = f"{random_.choice(ODD_NAMES)}.jsonl"
    return Case(
        "jsonl",
        {name: data},
        {"output": {"keep": keep}},
        {name: expect_jsonl(data)},
        may_be_unreadable=keep == ["id"],
    )


def jsonl_bytes(random_: random.Random) -> bytes:
    """A JSONL shard of up to 30 lines."""
    lines = [json_line(random_) for _ in range(random_.randrange(30))]
    data = random_.choice([b"\n", b"\n", b"\r\n"]).join(lines)
    if random_.randrange(3):
        data += b"\n"
    if not random_.randrange(10):
        data = BOM + data
    if not random_.randrange(8):
        data = mutated(data, random_, random_.randrange(1, 20))
    return data


def json_line(random_: random.Random) -> bytes:
    """One line: a sound row, or something like it."""
    kind = random_.randrange(14)
    if kind < 5:
        row = {"id": random_.randrange(10**6), "text": odd_text(random_)}
        return json.dumps(row, ensure_ascii=not random_.randrange(2)).encode("utf-8", "replace")
    if kind < 7:
        row = {"id": odd_value(random_), "text": odd_value(random_), "x": odd_value(random_)}
        return json.dumps(row).encode()
    if kind == 7:
        return json.dumps(odd_value(random_)).encode()
    if kind == 8:
        line = json.dumps({"id": 1, "text": odd_text(random_)}).encode()
        return line[: random_.randrange(len(line) + 1)]
    if kind == 9:
        return mutated(json.dumps({"text": "some words"}).encode(), random_, 3).replace(b"\n", b"")
    if kind == 10:
        return random_.randbytes(random_.randrange(40)).replace(b"\n", b"\x00")
    if kind == 11:
        return random_.choice([b"", b" ", b"\t\r", b"{}", b"[]", b"null", b"\x0c", b'{"text"}'])
    if kind == 12:
        return huge_line(random_)
    return random_.choice(ODD_LINES)


ODD_NAMES = (
    *("a", "a b", "a'b", 'a"b', "a%20b", "a+b", "a=b", "a~b", "a#b", "a\\b", "-a", "a\nb", "a:b"),
    *("über", "u\u0308ber", "漢字", "🏳️‍🌈", "a\u202eb", "{a}", "{{ a }}", "<b>", "$HOME", "x" * 240),
)
ODD_LINES = (
    b'{"text": "\\ud800"}',
    b'{"text": "\\ud83d\\ude00 pair"}',
    b'{"text": NaN}',
    b'{"text": Infinity, "id": -Infinity}',
    b'{"text": "a", "text": "b"}',
    b'{"text": "' + b"\xe2\x80\xa8" + b'line\\u2028"}',
    b'{"text": 1e400}',
    b'{"text": 123456789012345678901234567890}',
    b'{"text": "x", "id": ' + b"9" * 5000 + b"}",
    b'{"text": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"text": ' + b"[" * 3000 + b"]" * 3000 + b"}",
    b'{"text": "x", "deep": ' + b"[" * 300 + b"]" * 300 + b"}",
    b'{"text": ' + b'{"a":' * 400 + b"1" + b"}" * 400 + b"}",
    b'{"text": "tab\tinside"}',
    b'{"text": "nul \\u0000 end"}',
    b'{"text": "{{ id }} {% raw %}"}',
    b'{"text": "%s %d %%"}',
    b'{"text": "<script>alert(1)</script>"}',
    b'{"text": "\\u001b[2J\\u001b]0;title\\u0007"}',
    b'{"TEXT": "wrong case"}',
    b'{"text ": "wrong name", "": 1}',
    b'{"text": "\\u202ereversed"}',
    b"{'text': 'single'}",
    b'{"text": "trailing"},',
    b'{"text": "comment"} // x',
    b'\xff\xfe{"text": "utf-16 mark"}',
    '{"text": "utf-16"}'.encode("utf-16"),
    '{"text": "latin-1 é"}'.encode("latin-1"),
    b'{"text": "overlong \xc0\xaf"}',
    b'{"text": "surrogate \xed\xa0\x80"}',
)


def huge_line(random_: random.Random) -> bytes:
    """A line around the longest that is allowed."""
    size = MAX_LINE_BYTES + random_.choice([-40, -14, -13, -12, -11, -10, 0, 1, 50_000])
    return b'{"text": "' + b"x" * size + b'"}'


def odd_text(random_: random.Random) -> str:
    """Text that may be anything but valid UTF-16."""
    kind = random_.randrange(8)
    if kind == 0:
        return "".join(chr(random_.randrange(0x20, 0x3000)) for _ in range(random_.randrange(30)))
    if kind == 1:
        return random_.choice(["", " ", "\u200b", "\u00a0\u3000", "\ufeff", "\x00", "\u2028\n"])
    if kind == 2:
        points = [random_.randrange(0x110000) for _ in range(random_.randrange(12))]
        return "".join(chr(point) for point in points)
    if kind == 3:
        return "word " * random_.choice([198, 199, 200, 201, 1000])
    if kind == 4:
        return random_.choice(["e\u0301\u0301\u0301", "🏳️‍🌈", "\u0627\u0644", "a\u0000b", "\ud800"])
    return f"document {random_.randrange(20)} of the river"


def odd_value(random_: random.Random, depth: int = 0) -> Any:
    """Any JSON value, and a few that JSON does not have."""
    kind = random_.randrange(10 if depth < 3 else 7)
    match kind:
        case 0:
            return None
        case 1:
            return random_.choice([True, False])
        case 2:
            return random_.choice([0, -1, 17, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1])
        case 3:
            return random_.choice([0.5, -0.0, 1e300, 1e-300, math.nan, math.inf, 2.0**63])
        case 4 | 5 | 6:
            return odd_text(random_)
        case 7:
            return [odd_value(random_, depth + 1) for _ in range(random_.randrange(4))]
        case 8:
            names = ["a", "b", "", "text", "\u00e9"]
            return {random_.choice(names): odd_value(random_, depth + 1) for _ in range(3)}
    return {"role": "user", "content": odd_text(random_)}


def mutated(data: bytes, random_: random.Random, num_changes: int) -> bytes:
    """The same with bytes changed, removed and added."""
    changed = bytearray(data)
    for _ in range(num_changes):
        place = random_.randrange(len(changed) + 1)
        match random_.randrange(3):
            case 0:
                changed[place : place + 1] = random_.randbytes(1)
            case 1:
                del changed[place : place + random_.randrange(1, 8)]
            case 2:
                changed[place:place] = random_.randbytes(random_.randrange(1, 8))
    return bytes(changed)


def compressed_case(random_: random.Random) -> Case:
    """JSONL or CSV under gzip or zstd: whole, cut off, or with bits turned over."""
    is_csv = not random_.randrange(4)
    data = csv_bytes(random_) if is_csv else jsonl_bytes(random_)
    compress = random_.choice([gzip_bytes, zstd_bytes])
    packed = compress(data)
    if not random_.randrange(3):
        packed += compress(b"\n")
        data += b"\n"
    damage = random_.choice(["none", "cut", "bits", "tail"])
    name = ("a.csv" if is_csv else "a.jsonl") + (".gz" if compress is gzip_bytes else ".zst")
    if damage == "cut":
        packed = packed[: random_.randrange(len(packed))]
    elif damage == "bits":
        packed = with_bits_turned(packed, random_)
    elif damage == "tail":
        packed += random_.randbytes(random_.randrange(1, 30))
    rows = expect_csv(data) if is_csv else expect_jsonl(data)
    return Case(
        f"compressed, damage: {damage}",
        {name: packed},
        rows={name: rows} if damage == "none" and rows is not None else None,
        may_be_unreadable=damage != "none" or is_csv,
    )


def gzip_bytes(data: bytes) -> bytes:
    """A gzip member."""
    return gzip.compress(data, mtime=0)


def zstd_bytes(data: bytes) -> bytes:
    """A zstd frame."""
    packed: bytes = pa.compress(data, "zstd", asbytes=True)
    return packed


def with_bits_turned(data: bytes, random_: random.Random) -> bytes:
    """One to five bits are others."""
    changed = bytearray(data)
    for _ in range(random_.randrange(1, 6)):
        changed[random_.randrange(len(changed))] ^= 1 << random_.randrange(8)
    return bytes(changed)


def csv_case(random_: random.Random) -> Case:
    """CSV with ragged rows, quotes and line ends wherever."""
    data = csv_bytes(random_)
    rows = expect_csv(data)
    return Case(
        "csv",
        {"a.csv": data},
        rows=None if rows is None else {"a.csv": rows},
        may_be_unreadable=True,
    )


def csv_bytes(random_: random.Random) -> bytes:
    """A CSV shard of up to 20 records."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator=random_.choice(["\n", "\r\n"]))
    writer.writerow(random_.choice([["id", "text"], ["text"], ["text", "b", "c"], ["x", "y"]]))
    for _ in range(random_.randrange(20)):
        fields = [odd_text(random_).replace("\ud800", "?") for _ in range(random_.randrange(1, 4))]
        writer.writerow(fields[:2] if random_.randrange(4) else fields)
    data = file.getvalue().encode("utf-8", "replace")
    if not random_.randrange(3):
        junk = [b'"', b'""', b"\n", b"\r", b",", b"\x00", b"\xff", b'"\n', b"\xe2\x80\xa8"]
        place = random_.randrange(len(data) + 1)
        data = data[:place] + random_.choice(junk) + data[place:]
    return data


def parquet_table(random_: random.Random) -> pa.Table:
    """A table with a column `text` of some type, and columns of odd types."""
    num_rows = random_.randrange(25)
    texts = [odd_text(random_).replace("\ud800", "") for _ in range(num_rows)]
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    column: Any = random_.choice(
        [
            pa.array([text if random_.randrange(5) else None for text in texts], pa.string()),
            pa.array(texts, pa.large_string()),
            pa.array(texts, pa.string_view()).cast(pa.string()),
            pa.array(texts, pa.string()).dictionary_encode(),
            pa.array([text.encode() for text in texts], pa.binary()),
            pa.array([len(text) for text in texts], pa.int32()),
            pa.array([random_.choice([0.5, math.nan, None]) for _ in texts], pa.float64()),
            pa.array([[text] for text in texts], pa.list_(pa.string())),
            pa.nulls(num_rows),
        ]
    )
    others = {
        "when": pa.array([random_.randrange(2**60) for _ in texts], pa.timestamp("ns", tz="UTC")),
        "days": pa.array([random_.randrange(-(2**31), 2**31) for _ in texts], pa.date32()),
        "span": pa.array([random_.randrange(2**50) for _ in texts], pa.duration("us")),
        "price": pa.array([random_.randrange(10**6) for _ in texts], pa.int64()).cast(
            pa.decimal128(30, 4)
        ),
        "raw": pa.array([random_.randbytes(4) for _ in texts], pa.binary(4)),
        "half": pa.array([0.5 for _ in texts], pa.float16()),
        "map": pa.array([[("k", 1)] for _ in texts], pa.map_(pa.string(), pa.int64())),
        "deep": pa.array([{"a": [{"b": None}]} for _ in texts]),
        "none": pa.nulls(num_rows),
        "": pa.array([1 for _ in texts], pa.int8()),
        "two words": pa.array([True for _ in texts], pa.bool_()),
    }
    names = random_.sample(list(others), random_.randrange(5))
    columns = {"text": column, **{name: others[name] for name in names}}
    if not random_.randrange(12):
        columns["Text"] = columns.pop("text")
    return pa.table(columns)


def parquet_bytes(table: pa.Table, random_: random.Random) -> bytes:
    """The table as a Parquet file of some dialect."""
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        row_group_size=random_.choice([1, 5, 100]),
        compression=random_.choice(["none", "snappy", "zstd", "gzip"]),
        use_dictionary=bool(random_.randrange(2)),
        data_page_version=random_.choice(["1.0", "2.0"]),
        write_page_checksum=bool(random_.randrange(2)),
    )
    return sink.getvalue()


def parquet_case(random_: random.Random) -> Case:
    """A sound Parquet file of odd types; text columns have an oracle."""
    table = parquet_table(random_)
    rows: list[ExpectedRow] | None = None
    if "text" in table.column_names:
        values = table.column("text").to_pylist()
        rows = [
            ExpectedRow(want.outcomes, want.text, None)
            for want in (expect_record({"text": value}) for value in values)
        ]
    case = Case("parquet", {"a.parquet": parquet_bytes(table, random_)}, {"output": {"keep": []}})
    if rows is None or not random_.randrange(3):
        return Case("parquet", case.files, {}, None, may_be_unreadable="Text" in table.schema.names)
    return Case("parquet", case.files, case.sections, {"a.parquet": rows})


def damaged_parquet_case(random_: random.Random) -> Case:
    """A Parquet file that was cut off, changed, or never was one."""
    data = parquet_bytes(parquet_table(random_), random_)
    match random_.randrange(5):
        case 0:
            data = data[: random_.randrange(len(data))]
        case 1:
            data = with_bits_turned(data, random_)
        case 2:
            data = mutated(data, random_, random_.randrange(1, 6))
        case 3:
            data = data[: len(data) // 2] + data[-random_.randrange(8, 200) :]
        case 4:
            data = random_.choice([b"", b"PAR1", b"PAR1PAR1", jsonl_bytes(random_), b"\x00" * 100])
    return Case("parquet, damaged", {"a.parquet": data}, may_be_unreadable=True)


def column_case(random_: random.Random) -> Case:
    """Ready-made prompts, texts and conversations of all kinds of correctness."""
    rows = []
    for number in range(random_.randrange(1, 20)):
        value = random_.choice(
            [
                odd_text(random_),
                odd_value(random_),
                [],
                [{"role": "user", "content": odd_text(random_)}],
                [{"role": random_.choice(["user", "", None, 7]), "content": odd_value(random_)}],
                [odd_value(random_), odd_value(random_)],
                [{"role": "user", "content": [{"type": "text", "text": odd_text(random_)}]}],
            ]
        )
        rows.append({"id": number, "text": value})
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    outcomes = {OK, "null_prompt", "bad_type", "empty_prompt", "no_messages", "prompt_too_long"}
    expected = ExpectedRow(frozenset({*outcomes, "template_error"}))
    return Case(
        "column",
        {"a.jsonl": data},
        {"prompt": {"template": None, "column": "text"}, "output": {"keep": []}},
        {"a.jsonl": [expected] * len(rows)},
    )


def mixed_case(random_: random.Random) -> Case:
    """Several shards of several formats, bad lines left out or fatal, a chat, a limit."""
    files = {"a.jsonl": jsonl_bytes(random_), "b.jsonl": jsonl_bytes(random_)}
    if random_.randrange(2):
        files["c.csv"] = csv_bytes(random_)
    if random_.randrange(2):
        files["d.parquet"] = parquet_bytes(parquet_table(random_), random_)
    on_bad_line = random_.choice(["skip", "fail", "error_row"])
    content = random_.choice(["Say: {{ text }}", "{{ text | upper }}", "{{ text or 'nothing' }}"])
    return Case(
        f"mixed, on_bad_line: {on_bad_line}",
        files,
        {
            "input": {"on_bad_line": on_bad_line},
            "prompt": {
                "template": None,
                "messages": [{"role": "user", "content": content}],
                "on_overlong": random_.choice(["error", "truncate_end", "truncate_middle"]),
            },
            "output": {"keep": random_.choice([None, []])},
            "batch": {"feed": random_.choice(["continuous", "generate", "sequential"])},
        },
        may_be_unreadable=True,
    )


# The script


def main() -> None:
    """Make, run and judge the inputs; print the table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="number of a single input, whose files are kept")
    options = parser.parse_args()
    numbers = range(options.inputs) if options.only is None else [options.only]
    began = time.monotonic()
    codes: dict[str, Counter[int]] = {}
    num_rows: Counter[str] = Counter()
    problems: list[str] = []
    for number in numbers:
        case = make_case(random.Random(f"{options.seed}:{number}"))
        folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        verdict = judge(case, folder)
        codes.setdefault(case.kind, Counter())[verdict.code] += 1
        num_rows[case.kind] += verdict.num_rows
        problems += [f"input {number} ({case.kind}): {line}" for line in verdict.problems]
        if options.only is None:
            shutil.rmtree(folder)
        else:
            print(f"{folder}: exit code {verdict.code}", file=sys.stderr)
        if (number + 1) % 500 == 0:
            seconds = time.monotonic() - began
            print(f"{number + 1} inputs in {seconds:.0f} s", file=sys.stderr, flush=True)
    report(codes, num_rows, problems, options.seed, time.monotonic() - began)


def report(
    codes: Mapping[str, Counter[int]],
    num_rows: Counter[str],
    problems: Sequence[str],
    seed: int,
    seconds: float,
) -> None:
    """A table for people, one JSON line for programs."""
    for problem in problems:
        print(problem)
    known = sorted({code for counter in codes.values() for code in counter})
    print(f"{'kind':28}{'inputs':>8}{'rows':>9}" + "".join(f"{f'exit {c}':>9}" for c in known))
    for kind, counter in sorted(codes.items()):
        shares = "".join(f"{counter[code]:9,}" for code in known)
        print(f"{kind:28}{counter.total():8,}{num_rows[kind]:9,}{shares}")
    result = {
        "benchmark": "fuzz_inputs",
        "inputs": sum(counter.total() for counter in codes.values()),
        "rows": num_rows.total(),
        "seed": seed,
        "seconds": round(seconds, 1),
        "exit_codes": {
            str(code): sum(counter[code] for counter in codes.values()) for code in known
        },
        "problems": len(problems),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
