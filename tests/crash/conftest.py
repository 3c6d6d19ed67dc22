"""A job that has everything in it, runs of it that can be killed, and what must hold afterwards.

Nothing is simulated about a kill here: runs are processes, and SIGKILL ends them. Only the engine
is simulated, because its texts are known beforehand and its requests are counted.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from batchgen.output.batches import batch_files
from batchgen.output.journal import list_segments
from batchgen.output.layout import RunLayout
from batchgen.output.manifest import read_manifest
from batchgen.output.parts import read_part_info
from batchgen.output.reading import part_files, read_batches
from batchgen.output.snapshot import look

Row = tuple[str, int]

VOLATILE = ("run_id", "batch_id", "ttft_s", "latency_s", "duplicate_of")
"""Columns that may differ between two runs of a job; `duplicate_of` is compared by its meaning."""
TIMEOUT_S = 60.0
SLOTS = 8
WINDOW = 2 * SLOTS
RETRIED = ("--retry-failed", "-s", "model.extra.script={}")


class Zygote:
    """The process that forks runs; see zygote.py."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@dataclass
class Run:
    """A run that was started, and what it wrote to stdout and stderr once it has ended."""

    zygote: Zygote
    pid: int
    output: Path
    code: int | None = None

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """Its exit code; minus the signal's number where a signal ended it."""
        if self.code is None:
            self.code = self.zygote.ask(do="wait", pid=self.pid, timeout_s=timeout_s)
        if self.code is None:
            self.kill()
            pytest.fail(f"the run has not ended within {timeout_s} s: {self.stderr}")
        return self.code

    @property
    def stdout(self) -> str:
        return self.output.with_suffix(".out").read_text()

    @property
    def stderr(self) -> str:
        return self.output.with_suffix(".err").read_text()


@dataclass
class Desk:
    """A working directory with inputs, `job.yaml`, and the run directory `out`."""

    zygote: Zygote
    path: Path
    attempts: list[Run] = field(default_factory=list)

    @property
    def layout(self) -> RunLayout:
        job = yaml.safe_load((self.path / "job.yaml").read_text(encoding="utf-8"))
        return RunLayout(self.path / job["output"]["path"])

    def start(
        self,
        *args: str,
        crash: str = "",
        file_bytes: int | None = None,
        may_all: bool = True,
    ) -> Run:
        """`batchgen run job.yaml ARGS`, to die at the crash point `crash`.

        `file_bytes` is a limit of file sizes; `may_all` is false for a process for which
        permissions count even where the tests run as root.
        """
        return self._launch(
            ["run", "job.yaml", *args],
            env={"BATCHGEN_CRASH_AT": crash},
            file_bytes=file_bytes,
            may_all=may_all,
        )

    def verify(self) -> None:
        """`batchgen verify out` has to find nothing."""
        args = ["verify", str(self.layout.path), "--json"]
        run = self._launch(args, env={}, file_bytes=None, may_all=True)
        assert run.wait() == 0, run.stderr
        answer = json.loads(run.stdout)
        assert (answer["problems"], answer["notes"]) == ([], [])

    def _launch(self, args: list[str], **options: Any) -> Run:
        logs = self.path / "logs"
        logs.mkdir(exist_ok=True)
        output = logs / f"{len(self.attempts)}"
        pid = self.zygote.ask(
            do="start",
            args=args,
            cwd=str(self.path),
            stdout=str(output.with_suffix(".out")),
            stderr=str(output.with_suffix(".err")),
            **options,
        )
        run = Run(self.zygote, pid, output)
        self.attempts.append(run)
        return run

    def run(self, *args: str, **options: Any) -> Run:
        """The same, to its end."""
        run = self.start(*args, **options)
        run.wait()
        return run

    def crash(self, step: str, *args: str) -> None:
        """A run that has to reach this crash point."""
        run = self.run(*args, crash=step)
        assert run.code == -signal.SIGKILL, f"did not reach {step}: {run.code} {run.stderr}"

    def finish(self, *args: str) -> Run:
        """A run that has to end well."""
        run = self.run(*args)
        assert run.code == 0, run.stderr
        return run

    def await_rows(self, num_rows: int, run: Run) -> None:
        """Return when the engine has got so many requests."""
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.received()) < num_rows:
            assert time.monotonic() < deadline, run.stderr
            time.sleep(0.005)

    def received(self) -> list[Row]:
        """Rows that reached an engine, in the order in which they did, over all runs."""
        record = self.path / "received.jsonl"
        if not record.exists():
            return []
        lines = record.read_bytes().split(b"\n")[:-1]
        return [(row["shard"], row["row"]) for row in map(json.loads, lines)]

    def durable(self) -> set[Row]:
        """Rows that a reader finds now, in parts and journal."""
        return look(self.layout, _rows_of) if self.layout.schema.exists() else set()


def _rows_of(run: Any) -> set[Row]:
    rows: set[Row] = set()
    for key in run.part_keys():
        pending = run.pending(key)
        if pending is not None:
            numbers = pending.done.rows().tolist()
        else:
            numbers = run.state.done_rows(*key).tolist()
        rows.update((key.shard, number) for number in numbers)
    return rows


@dataclass(frozen=True)
class Dataset:
    """What a finished run has left, for comparison with another."""

    parts: dict[str, pa.Table]
    schemas: dict[str, pa.Schema]
    num_superseded: int

    @classmethod
    def of(cls, layout: RunLayout) -> "Dataset":
        files = part_files(layout)
        tables = {file.name: pq.ParquetFile(file).read() for file in files}
        return cls(
            parts={
                name: table.drop_columns(list(VOLATILE)).replace_schema_metadata()
                for name, table in tables.items()
            },
            schemas={name: table.schema.remove_metadata() for name, table in tables.items()},
            num_superseded=sum(read_part_info(file).num_superseded for file in files),
        )


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    process = Zygote()
    yield process
    process.close()


JOB: dict[str, Any] = {
    "input": {"paths": ["data"], "on_bad_line": "error_row"},
    "prompt": {"template": "Say it: {{ text }}"},
    "model": {
        "engine": "simulated",
        "max_model_len": 64,
        "max_num_seqs": SLOTS,
        "extra": {
            "step_s": 0.002,
            "prefix_caching": False,
            "record": "received.jsonl",
            "script": {
                "a.parquet:3": {"fault": "row_error"},
                "a.parquet:26": {"fault": "row_error"},
                "b.jsonl:45": {"fault": "row_error"},
            },
        },
    },
    "sampling": {"max_tokens": 14, "temperature": 0.0},
    "batch": {"size": 24, "look_ahead": 32},
    "output": {"path": "out", "rows_per_part": 25, "keep": ["id", "score", "tags", "more"]},
    "errors": {"max_failed": "50%", "stop_at": None},
}
"""Two shards, five parts; refused rows, rows that the engine fails, equal prompts."""


def job_with(**sections: Mapping[str, Any]) -> dict[str, Any]:
    """`JOB` with some keys of some sections replaced."""
    merged = {name: dict(values) for name, values in JOB.items()}
    for name, values in sections.items():
        merged[name] = {**merged.get(name, {}), **values}
    return merged


LARGE_JOB = job_with(
    prompt={"template": "{{ text }}"},
    model={"extra": {"step_s": 0.001, "prefix_caching": False, "record": "received.jsonl"}},
    batch={"size": 8, "look_ahead": 16},
    output={"rows_per_part": 8, "keep": ["id"], "prompt": True},
)


def set_up(zygote: Zygote, path: Path, job: Mapping[str, Any]) -> Desk:
    """A desk on which the inputs lie already."""
    (path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    return Desk(zygote, path)


def write_inputs(folder: Path) -> None:
    """60 rows of Parquet and 65 of JSONL, equal prompts within and across them."""
    folder.mkdir(parents=True)
    rows = [
        {"id": number, "text": text_of(number), "score": number / 4, "tags": ["x", str(number)]}
        for number in range(60)
    ]
    rows[7]["text"] = None
    rows[8]["text"] = "  \u200b\n"
    pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet", row_group_size=16)
    lines = [
        json.dumps({"id": 100 + number, "text": text_of(number), "more": {"n": number}})
        for number in range(20, 85)
    ]
    lines[5] = '{"id": 105, "text": "never closed'
    lines[30] = json.dumps({"id": 130, "text": "word " * 80})
    lines[31] = json.dumps({"id": 131, "text": 17})
    lines.insert(10, "")
    (folder / "b.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def text_of(number: int) -> str:
    """Every sixth text is that of another row."""
    return f"document {number if number % 6 else number % 12} of the river Übung 漢字 {'x ' * 3}"


@pytest.fixture
def make_desk(tmp_path: Path, zygote: Zygote) -> Callable[..., Desk]:
    """A desk with the inputs, and a job with some keys replaced."""

    def make(**sections: Mapping[str, Any]) -> Desk:
        path = tmp_path / "desk"
        write_inputs(path / "data")
        return set_up(zygote, path, job_with(**sections))

    return make


@pytest.fixture
def make_large_desk(tmp_path: Path, zygote: Zygote) -> Callable[[], Desk]:
    """A desk whose job journals two segments: 56 rows of two megabytes."""
    return lambda: large_desk(zygote, tmp_path / "desk")


@pytest.fixture(scope="session")
def undisturbed_large(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Dataset:
    """The dataset of that job where nothing happens to it."""
    desk = large_desk(zygote, tmp_path_factory.mktemp("reference") / "desk")
    desk.finish()
    return Dataset.of(desk.layout)


def large_desk(zygote: Zygote, path: Path) -> Desk:
    (path / "data").mkdir(parents=True)
    rows = [{"id": number, "text": f"{number}-{'x' * 10**6}"} for number in range(56)]
    lines = [json.dumps(row) + "\n" for row in rows]
    (path / "data" / "large.jsonl").write_text("".join(lines), encoding="utf-8")
    return set_up(zygote, path, LARGE_JOB)


@pytest.fixture(scope="session")
def slower() -> Callable[..., dict[str, Any]]:
    """The section `model` with another duration of a step, and other options of the engine."""
    return lambda step_s, **options: {
        "extra": {**JOB["model"]["extra"], "step_s": step_s, **options}
    }


@pytest.fixture(scope="session")
def retried() -> tuple[str, ...]:
    """Arguments of a retry in which the engine fails no row."""
    return RETRIED


@pytest.fixture(scope="session")
def make_reference(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Callable[[], Desk]:
    """A desk with the inputs and `JOB`, for runs that nothing happens to."""

    def make() -> Desk:
        path = tmp_path_factory.mktemp("reference") / "desk"
        write_inputs(path / "data")
        return set_up(zygote, path, JOB)

    return make


@pytest.fixture(scope="session")
def finished_desk(make_reference: Callable[[], Desk]) -> Desk:
    """A desk whose job is done; to be copied, not to be changed."""
    desk = make_reference()
    desk.finish()
    return desk


@pytest.fixture
def make_finished_desk(tmp_path: Path, finished_desk: Desk) -> Callable[[], Desk]:
    """A desk whose job is done, files and their times as they were left."""

    def make() -> Desk:
        shutil.copytree(finished_desk.path, tmp_path / "desk")
        return Desk(finished_desk.zygote, tmp_path / "desk")

    return make


@pytest.fixture(scope="session")
def undisturbed(finished_desk: Desk) -> Dataset:
    """The dataset of a run that nothing happened to."""
    return Dataset.of(finished_desk.layout)


@pytest.fixture(scope="session")
def undisturbed_retry(make_reference: Callable[[], Desk]) -> Dataset:
    """The same after a retry that nothing happened to."""
    desk = make_reference()
    desk.finish()
    desk.finish(*RETRIED)
    return Dataset.of(desk.layout)


@pytest.fixture(scope="session")
def dataset_of() -> Callable[[RunLayout], Dataset]:
    """Reads what a finished run has left."""
    return Dataset.of


@pytest.fixture
def check_finished() -> Callable[[Desk, Dataset], None]:
    """Everything that has to hold of a run directory when its job is done."""

    def check(desk: Desk, expected: Dataset) -> None:
        layout = desk.layout
        found = Dataset.of(layout)
        assert list(found.parts) == list(expected.parts)
        for name, table in expected.parts.items():
            assert found.schemas[name] == expected.schemas[name]
            assert _differences(found.parts[name], table) == []
        assert found.num_superseded == expected.num_superseded
        check_copies(layout)
        check_batches(layout)
        check_traces(layout)
        desk.verify()

    return check


def _differences(found: pa.Table, expected: pa.Table) -> list[str]:
    """Every value that is not the expected one."""
    pairs = zip(found.to_pylist(), expected.to_pylist(), strict=True)
    return [
        f"row {row['row']}: {name} is {row[name]!r} instead of {other[name]!r}"
        for row, other in pairs
        for name in expected.column_names
        if row[name] != other[name]
    ]


def check_copies(layout: RunLayout) -> None:
    """A copy names a row that is no copy itself and says the same."""
    rows: dict[str, dict[str, Any]] = {}
    columns = ["shard", "row", "output", "finish_reason", "error_type", "duplicate_of"]
    for file in part_files(layout):
        for row in pq.ParquetFile(file).read(columns=columns).to_pylist():
            rows[f"{row['shard']}:{row['row']}"] = row
    for row in rows.values():
        if row["duplicate_of"] is not None:
            leader = rows[row["duplicate_of"]]
            assert leader["duplicate_of"] is None
            assert leader["output"] == row["output"]
            assert leader["finish_reason"] == row["finish_reason"]


def check_batches(layout: RunLayout) -> None:
    """The table of batches counts every row once, and every superseded one as well."""
    batches = read_batches(layout.path)
    assert batches["batch_id"].is_unique
    stored = [id for file in batch_files(layout) for id in _column(file, "batch_id")]
    assert sorted(stored) == sorted(batches["batch_id"])
    counted: Counter[int] = Counter()
    runs: dict[int, str] = {}
    num_rows = num_superseded = 0
    for file in part_files(layout):
        table = pq.ParquetFile(file).read(columns=["batch_id", "run_id"])
        counted.update(table.column("batch_id").to_pylist())
        runs.update((row["batch_id"], row["run_id"]) for row in table.to_pylist())
        num_rows += table.num_rows
        num_superseded += read_part_info(file).num_superseded
    assert int(batches["num_rows"].sum()) == num_rows + num_superseded
    by_id = batches.set_index("batch_id")
    for batch_id, rows in counted.items():
        assert rows <= by_id.loc[batch_id, "num_rows"]
        assert runs[batch_id] == by_id.loc[batch_id, "run_id"]


def check_traces(layout: RunLayout) -> None:
    """Nothing temporary is left, and a finished run says so."""
    files = [path for path in layout.path.rglob("*") if path.is_file()]
    assert [path for path in files if "tmp" in path.name] == []
    assert list_segments(layout.journal) == []
    assert layout.success.exists()
    assert not (layout.hidden / "holder.json").exists()
    manifest = read_manifest(layout)
    assert manifest is not None
    assert manifest["status"] == "done"
    parts = [read_part_info(file) for file in part_files(layout)]
    assert manifest["counts"]["num_rows"] == sum(part.num_rows for part in parts)
    assert manifest["counts"]["num_failed"] == sum(part.counts.num_failed for part in parts)
    assert all(part.complete for part in parts)


def _column(file: Path, name: str) -> list[Any]:
    values: list[Any] = pq.ParquetFile(file).read(columns=[name]).column(0).to_pylist()
    return values
