"""Kills a run with SIGKILL at random moments, again and again, and counts what that costs.

A job of a thousand rows (Parquet and JSONL, equal prompts, rows that are refused, rows that the
engine fails) is started as a process of its own, killed, started again, killed again, until it
comes to its end; then the same for its retry. Half of the jobs use the continuous feed, half the
`generate` feed. Most kills come at a random time after the run has taken its lock, one in eight at
a random time after its process has begun. After each kill the directory is read, as `batchgen
status` would, and must hold everything that it held at the kill before; after the last run each row
must be there once, in its place, with the text that names its own prompt.

The engine is simulated, because its requests are noted in a file as they arrive: a row that was
requested before a kill and is not in the directory after it has to be generated again. The promise
is: no more of these than rows in flight and rows finished in the last five seconds (`generate`:
than one batch).

    python benchmarks/random_kills.py                # 200 kills, some ten minutes
    python benchmarks/random_kills.py --kills 20 --seed 7
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchgen.output.layout import RunLayout
from batchgen.output.lock import read_holder
from batchgen.output.parts import read_part_info
from batchgen.output.reading import part_files, read_batches
from batchgen.output.snapshot import Snapshot, look

Row = tuple[str, int]

NUM_ROWS = 500
"""Of each of the two shards."""
SLOTS = 32
WINDOW = 2 * SLOTS
BATCH_SIZE = 128
STEP_S = 0.01
LONGEST_DELAY_S = 1.6
EARLY_SHARE = 8
"""One kill in so many counts its delay from the start of the process."""
FEEDS = ("continuous", "generate")
COMMAND = [sys.executable, "-c", "from batchgen.cli.app import main; main()", "run", "job.yaml"]
RETRY = ["--retry-failed", "-s", "model.extra.script={}"]


@dataclass(slots=True)
class Tally:
    """What kills have cost the jobs of one feed; rows, if nothing else is said."""

    jobs: int = 0
    kills: int = 0
    kills_before_lock: int = 0
    kills_in_retry: int = 0
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    forgotten: int = 0
    """Durable at one kill, and gone at a later one."""
    repeated_durable: int = 0
    """Went to the engine although they were durable."""
    repeated_most: int = 0
    """Of one kill."""
    repeated_allowed: int = 0
    """Of that kill: rows in flight and rows requested in the five seconds before it."""
    repeated_total: int = 0
    beyond_promise: int = 0
    """Kills that cost more than was promised."""
    problems: list[str] = field(default_factory=list)
    """What else was wrong at the end of a job."""


@dataclass(slots=True)
class Desk:
    """The working directory of one job."""

    path: Path
    feed: str
    moments: random.Random
    tally: Tally
    durable: set[Row] = field(default_factory=set)

    @property
    def layout(self) -> RunLayout:
        return RunLayout(self.path / "out")

    def received(self) -> list[Row]:
        """Rows that reached an engine, over all runs."""
        record = self.path / "received.jsonl"
        if not record.exists():
            return []
        lines = record.read_bytes().split(b"\n")[:-1]
        return [(row["shard"], row["row"]) for row in map(json.loads, lines)]

    def run_until_done(self, max_kills: int, arguments: Sequence[str] = ()) -> None:
        """Start the command again and again, until it ends by itself."""
        for number in range(max_kills + 1):
            if self._run(arguments, is_last=number == max_kills):
                return

    def _run(self, arguments: Sequence[str], *, is_last: bool) -> bool:
        """One run; whether it came to its end."""
        before = self.received()
        with (self.path / "stderr").open("w+b") as stderr:
            process = subprocess.Popen(
                [*COMMAND, *arguments], cwd=self.path, stdout=stderr, stderr=stderr
            )
            counts = [] if is_last else self._kill(process)
            code = process.wait()
            stderr.seek(0)
            if code not in (0, -signal.SIGKILL):
                raise SystemExit(f"a run ended with {code}: {stderr.read().decode()}")
        received = self.received()[len(before) :]
        if not arguments:
            self.tally.repeated_durable += sum(row in self.durable for row in received)
        if code == 0:
            return True
        self._count_kill(received, counts, is_retry=bool(arguments))
        return False

    def _kill(self, process: subprocess.Popen[bytes]) -> list[tuple[float, int]]:
        """Kill the process at a random moment; times, and requests of this run by then."""
        if self.moments.randrange(EARLY_SHARE):
            while process.poll() is None and not self._is_locked_by(process.pid):
                time.sleep(0.002)
        record = self.path / "received.jsonl"
        at_start = record.stat().st_size if record.exists() else 0
        counts: list[tuple[float, int]] = []
        end = time.monotonic() + self.moments.uniform(0.0, LONGEST_DELAY_S)
        while (left := end - time.monotonic()) > 0 and process.poll() is None:
            size = record.stat().st_size if record.exists() else 0
            counts.append((time.monotonic(), size - at_start))
            time.sleep(min(left, 0.1))
        if not self._is_locked_by(process.pid):
            self.tally.kills_before_lock += process.poll() is None
        process.kill()
        return counts

    def _is_locked_by(self, pid: int) -> bool:
        holder = read_holder(self.layout)
        return holder is not None and holder.pid == pid

    def _count_kill(
        self, received: Sequence[Row], counts: Sequence[tuple[float, int]], *, is_retry: bool
    ) -> None:
        tally = self.tally
        tally.kills += 1
        tally.kills_in_retry += is_retry
        durable = look(self.layout, durable_rows) if self.layout.schema.exists() else set()
        tally.forgotten += len(self.durable - durable)
        self.durable = durable
        if is_retry:
            return
        repeated = len(set(received) - durable)
        allowed = self._allowed(received, counts)
        tally.repeated_total += repeated
        tally.beyond_promise += repeated > allowed
        if repeated > tally.repeated_most:
            tally.repeated_most, tally.repeated_allowed = repeated, allowed

    def _allowed(self, received: Sequence[Row], counts: Sequence[tuple[float, int]]) -> int:
        """Rows that this kill may cost."""
        if self.feed == "generate":
            return BATCH_SIZE
        if not counts or not received:
            return WINDOW
        bytes_per_row = max(counts[-1][1], 1) / len(received)
        earlier = [size for moment, size in counts if moment <= counts[-1][0] - 5.0]
        return WINDOW + len(received) - round((earlier[-1] if earlier else 0) / bytes_per_row)


def durable_rows(run: Snapshot) -> set[Row]:
    """Rows in parts and journal."""
    rows: set[Row] = set()
    for key in run.part_keys():
        pending = run.pending(key)
        numbers = pending.done.rows() if pending is not None else run.state.done_rows(*key)
        rows.update((key.shard, number) for number in numbers.tolist())
    return rows


def main() -> None:
    """Kill, count, print the table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    moments = random.Random(options.seed)
    tallies = {feed: Tally() for feed in FEEDS}
    began = time.monotonic()
    while (left := options.kills - sum(tally.kills for tally in tallies.values())) > 0:
        feed = min(FEEDS, key=lambda feed: tallies[feed].kills)
        with tempfile.TemporaryDirectory() as folder:
            run_job(Desk(Path(folder), feed, moments, tallies[feed]), left)
        done = sum(tally.kills for tally in tallies.values())
        print(f"{done} kills in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    report(tallies, options.seed, time.monotonic() - began)


def run_job(desk: Desk, max_kills: int) -> None:
    """One job with its retry, both killed on the way; then the proof."""
    expected = write_job(desk.path, desk.feed, desk.moments)
    kills_before = desk.tally.kills
    desk.run_until_done(max_kills)
    max_kills -= desk.tally.kills - kills_before
    if max_kills:
        desk.run_until_done(min(max_kills, 2), RETRY)
    desk.run_until_done(0, RETRY)
    check(desk, expected)
    desk.tally.jobs += 1


def write_job(path: Path, feed: str, moments: random.Random) -> dict[Row, str]:
    """Inputs and job; for each row the start of its output, or its error type."""
    expected: dict[Row, str] = {}
    (path / "data").mkdir()
    texts = [f"number {moments.randrange(NUM_ROWS)} of the corpus" for _ in range(NUM_ROWS * 2)]
    rows: list[dict[str, Any]] = [{"id": i, "text": text} for i, text in enumerate(texts)]
    for row in moments.sample(rows, 30):
        row["text"] = None
    lines = [json.dumps(row) for row in rows[NUM_ROWS:]]
    bad = moments.sample(range(NUM_ROWS), 10)
    for number in bad:
        lines[number] = lines[number][:-1]
    pq.write_table(pa.Table.from_pylist(rows[:NUM_ROWS]), path / "data" / "a.parquet")
    (path / "data" / "b.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for number, row in enumerate(rows):
        key = ("a.parquet" if number < NUM_ROWS else "b.jsonl", number % NUM_ROWS)
        expected[key] = f"Reply to: {row['text']}" if row["text"] else "null_prompt"
    expected |= {("b.jsonl", number): "bad_json" for number in bad}
    script = {f"{shard}:{row}": {"fault": "row_error"} for shard, row in list(expected)[::15]}
    extra = {
        "step_s": STEP_S,
        "prefix_caching": False,
        "record": "received.jsonl",
        "script": script,
    }
    job = {
        "input": {"paths": ["data"]},
        "prompt": {"template": "{{ text }}"},
        "model": {"engine": "simulated", "max_num_seqs": SLOTS, "extra": extra},
        "sampling": {"max_tokens": 24, "temperature": 0.0},
        "batch": {"feed": feed, "size": BATCH_SIZE, "look_ahead": 512},
        "output": {"path": "out", "rows_per_part": 200},
        "errors": {"max_failed": "50%", "stop_at": None},
    }
    # JSON is YAML.
    (path / "job.yaml").write_text(json.dumps(job), encoding="utf-8")
    return expected


def check(desk: Desk, expected: dict[Row, str]) -> None:
    """Compare the outputs with what they have to be."""
    tally, layout = desk.tally, desk.layout
    found = Counter[Row]()
    for row in output_rows(layout):
        key = (row["shard"], row["row"])
        found[key] += 1
        answer = row["error_type"] or row["output"]
        tally.wrong += not answer.startswith(expected.get(key, "\0"))
    tally.rows += len(expected)
    tally.lost += len(expected.keys() - found.keys())
    tally.doubled += sum(count - 1 for count in found.values())
    superseded = sum(read_part_info(file).num_superseded for file in part_files(layout))
    in_batches = int(read_batches(layout.path)["num_rows"].sum())
    if in_batches != found.total() + superseded:
        tally.problems.append(f"batches count {in_batches}, rows {found.total()} + {superseded}")
    leftovers = [path for path in layout.path.rglob("*") if "tmp" in path.name]
    tally.problems += [f"left behind: {path.name}" for path in leftovers]
    if not layout.success.exists():
        tally.problems.append("no _SUCCESS")
    verify = [*COMMAND[:-2], "verify", "out"]
    proof = subprocess.run(verify, cwd=desk.path, capture_output=True, text=True)
    if proof.returncode:
        tally.problems.append(proof.stderr)


def output_rows(layout: RunLayout) -> Iterator[dict[str, Any]]:
    """Every row of every part."""
    for file in part_files(layout):
        columns = ["shard", "row", "output", "error_type"]
        yield from pq.ParquetFile(file).read(columns=columns).to_pylist()


def report(tallies: dict[str, Tally], seed: int, seconds: float) -> None:
    """A table for people, one JSON line for programs."""
    names = [name for name in Tally.__dataclass_fields__ if name != "problems"]
    print(f"{'':20}" + "".join(f"{feed:>12}" for feed in tallies))
    for name in names:
        values = "".join(f"{getattr(tally, name):12,}" for tally in tallies.values())
        print(f"{name.replace('_', ' '):20}{values}")
    for feed, tally in tallies.items():
        for problem in tally.problems:
            print(f"{feed}: {problem}")
    result = {
        "benchmark": "random_kills",
        "kills": sum(tally.kills for tally in tallies.values()),
        "seed": seed,
        "seconds": round(seconds, 1),
        "window": WINDOW,
        "batch_size": BATCH_SIZE,
        "cores": os.cpu_count(),
        "feeds": {feed: asdict(tally) for feed, tally in tallies.items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
