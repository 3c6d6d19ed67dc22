"""What batchgen itself costs a row: Parquet to Parquet with an engine that costs nothing.

The engine answers at once, everything else is the real thing: reading, judging and counting
prompts, dedupe, ordering, the continuous feed, the journal with its syncs, publishing, batch
records. Rows are about 1 kB. Each measurement is a process of its own; repeats of all contestants
are interleaved; wall time is that of the run without interpreter start and imports, the same for
each contestant. Peak memory is the process's, at 10,000 rows and at `--memory-rows`.

    python benchmarks/harness.py                       # batchgen, and Ray Data where installed
    python benchmarks/harness.py --only batchgen --rows 100000 --repeats 5
    python benchmarks/harness.py --only batchgen --memory-rows 1000000 --resume
"""

import argparse
import importlib.util
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_SHARD = 50_000
WORDS = [
    "river", "stone", "cloud", "paper", "green", "quiet", "seven", "market", "winter", "lamp",
    "bread", "coast", "small", "early", "garden", "letter", "music", "north", "open", "plain",
]  # fmt: skip


def main() -> None:
    """Measure what was asked for; a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["batchgen", "ray"])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory-rows", type=int, default=0, help="also compare peak memory")
    parser.add_argument("--resume", action="store_true", help="also time runs without news")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(child(json.loads(options.child))))
        return
    contestants = [options.only] if options.only else ["batchgen", "ray"]
    if "ray" in contestants and importlib.util.find_spec("ray") is None:
        if options.only == "ray":
            raise SystemExit("ray is not installed: pip install 'ray[data]'")
        print("ray is not installed, it is left out: pip install 'ray[data]'")
        contestants.remove("ray")
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        result = measure(Path(folder), contestants, options)
    print(json.dumps(result))


def measure(folder: Path, contestants: list[str], options: argparse.Namespace) -> dict[str, object]:
    """All measurements; the JSON line."""
    shards = make_shards(folder / "in", options.rows)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for repeat in range(options.repeats):
        for name in contestants:
            took = in_child(kind=name, shards=shards, out=str(folder / f"{name}-{repeat}"))
            times[name].append(took["seconds"])
    print(f"{options.rows:,} rows of about 1 kB, {options.repeats} repeats, interleaved")
    print("contestant    µs/row (median)   fastest   slowest")
    micros = {name: [1e6 * s / options.rows for s in seconds] for name, seconds in times.items()}
    for name, values in micros.items():
        print(f"{name:12s} {statistics.median(values):16.1f} {min(values):9.1f} {max(values):9.1f}")
    result: dict[str, object] = {
        "benchmark": "harness",
        "rows": options.rows,
        "us_per_row": {name: [round(v, 2) for v in values] for name, values in micros.items()},
    }
    if "batchgen" in micros:
        result["harness_us_per_row"] = round(statistics.median(micros["batchgen"]), 2)
    if options.memory_rows:
        result |= measure_memory(folder, options.memory_rows, resume=options.resume)
    elif options.resume:
        result |= measure_resume(shards, str(folder / "batchgen-0"))
    return result


def measure_memory(folder: Path, num_rows: int, *, resume: bool) -> dict[str, object]:
    """Peak resident memory at 10,000 rows and at `num_rows`, in MB."""
    peaks = {}
    extra: dict[str, object] = {}
    for rows in (10_000, num_rows):
        shards = make_shards(folder / f"memory-{rows}", rows)
        out = str(folder / f"memory-out-{rows}")
        took = in_child(kind="batchgen", shards=shards, out=out)
        peaks[rows] = round(took["peak_mb"], 1)
        print(f"{rows:,} rows: {took['seconds']:.1f} s, peak memory {took['peak_mb']:.0f} MB")
        if resume and rows == num_rows:
            extra = measure_resume(shards, out)
    growth = round(peaks[num_rows] - peaks[10_000], 1)
    print(f"growth: {growth} MB")
    return {"peak_mb": peaks, "memory_growth_mb": growth, **extra}


def measure_resume(shards: list[str], out: str) -> dict[str, object]:
    """Seconds of a whole `batchgen run` process that finds everything done."""
    job = write_job(shards, out)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        command = [sys.executable, "-m", "batchgen", "run", job, "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - began)
    print(f"nothing new: {statistics.median(seconds):.2f} s for the whole process")
    return {"nothing_new_s": [round(value, 3) for value in seconds]}


def make_shards(folder: Path, num_rows: int) -> list[str]:
    """Parquet shards of rows with an id and a text of about 1 kB, all different."""
    folder.mkdir(parents=True)
    rng = random.Random(7)
    bodies = [" ".join(rng.choices(WORDS, k=166)) for _ in range(1000)]
    paths = []
    for start in range(0, num_rows, ROWS_PER_SHARD):
        numbers = range(start, min(start + ROWS_PER_SHARD, num_rows))
        texts = [f"{number} {bodies[number % 1000]}" for number in numbers]
        path = folder / f"rows-{start:09d}.parquet"
        pq.write_table(pa.table({"id": list(numbers), "text": texts}), path, row_group_size=10_000)
        paths.append(str(path))
    return paths


def write_job(shards: list[str], out: str) -> str:
    """A job file for these shards; its path."""
    job = {
        "input": {"paths": shards},
        "prompt": {"column": "text"},
        "model": {"engine": "simulated", "extra": {"zero_cost": True}},
        "sampling": {"max_tokens": 16, "temperature": 0.0},
        "output": {"path": out},
    }
    path = Path(f"{out}.yaml")
    path.write_text(json.dumps(job))
    return str(path)


def in_child(**task: object) -> dict[str, float]:
    """Run one measurement in a process of its own."""
    command = [sys.executable, __file__, "--child", json.dumps(task)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def child(task: dict[str, object]) -> dict[str, float]:
    """One measurement: seconds, and the peak memory of this process in MB."""
    run = {"batchgen": run_batchgen, "ray": run_ray}[str(task["kind"])]
    seconds = run([str(path) for path in task["shards"]], str(task["out"]))  # type: ignore[attr-defined]
    return {"seconds": seconds, "peak_mb": peak_mb()}


def run_batchgen(shards: list[str], out: str) -> float:
    """The whole run in this process."""
    from batchgen.config.loading import load_job
    from batchgen.run.execution import Execution  # noqa: F401  (imports are not what is measured)
    from batchgen.run.job import run_job

    job = load_job(write_job(shards, out))
    began = time.perf_counter()
    run_job(job)
    return time.perf_counter() - began


def run_ray(shards: list[str], out: str) -> float:
    """Ray Data: read, a map that adds a text, write; nothing is journaled or ordered."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False

    def answer(batch: dict) -> dict:
        batch["output"] = ["Reply to: " + text[:40] for text in batch["text"]]
        return batch

    began = time.perf_counter()
    ray.data.read_parquet(shards).map_batches(answer, batch_size=512).write_parquet(out)
    seconds = time.perf_counter() - began
    ray.shutdown()
    return seconds


def peak_mb() -> float:
    """Peak resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("/proc/self/status has no VmHWM; this benchmark needs Linux")


if __name__ == "__main__":
    main()
