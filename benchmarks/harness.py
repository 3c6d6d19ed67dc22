"""What batchgen itself costs a row, and what others cost, with an engine that costs nothing.

The engine answers at once, everything else is the real thing: reading, judging and counting
prompts, dedupe, ordering, the continuous feed, the journal with its syncs, publishing, batch
records. Rows are about 1 kB. Each measurement is a process of its own; repeats of all contestants
are interleaved; wall time is that of the run without interpreter start and imports, the same for
each contestant. Peak memory is the process's, at 10,000 rows and at `--memory-rows`.

Like stands beside like. `batchgen` counts words, as `run-batch-bare` looks at no prompt and `ray`
adds a constant; `batchgen-chat` applies the model's chat template and its tokenizer, as
`run-batch` does (`stubbed_run_batch.py` says how vLLM's run-batch runs without an engine). Ray Data
needs an interpreter that has it, `--ray-python`.

    python benchmarks/harness.py --rows 50000          # all that are installed
    python benchmarks/harness.py --only batchgen --rows 100000 --repeats 5
    python benchmarks/harness.py --only batchgen --memory-rows 1000000 --resume
    python benchmarks/harness.py --rows 50000 --memory-rows 200000 --ray-python /tmp/ray/bin/python
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_SHARD = 50_000
CONTESTANTS = ("batchgen", "batchgen-chat", "run-batch", "run-batch-bare", "ray")
LIKE = {"run-batch": "batchgen-chat", "run-batch-bare": "batchgen", "ray": "batchgen"}
"""Which of batchgen's runs does the same work as another tool's."""
WORDS = [
    "river", "stone", "cloud", "paper", "green", "quiet", "seven", "market", "winter", "lamp",
    "bread", "coast", "small", "early", "garden", "letter", "music", "north", "open", "plain",
]  # fmt: skip


def main() -> None:
    """Measure what was asked for; a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=f"some of {','.join(CONTESTANTS)}")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory-rows", type=int, default=0, help="also compare peak memory")
    parser.add_argument("--resume", action="store_true", help="also time runs without news")
    parser.add_argument("--model", default="models/smollm2-135m", help="whose tokenizer is used")
    parser.add_argument("--ray-python", help="an interpreter that has ray")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(child(json.loads(options.child))))
        return
    contestants = find_contestants(options)
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        result = measure(Path(folder), contestants, options)
    print(json.dumps(result))


def find_contestants(options: argparse.Namespace) -> dict[str, str]:
    """Contestants that can run, each with its interpreter; the others are named and left out."""
    from processes import RAY_RECIPE, ray_python

    names = options.only.split(",") if options.only else list(CONTESTANTS)
    if unknown := set(names) - set(CONTESTANTS):
        raise SystemExit(f"--only: no such contestant: {', '.join(sorted(unknown))}")
    contestants = dict.fromkeys(names, sys.executable)
    missing: dict[str, str] = {}
    if "ray" in names:
        python = ray_python(options.ray_python, sys.executable)
        contestants["ray"] = python or ""
        if python is None:
            missing["ray"] = f"ray is not installed; {RAY_RECIPE}"
    if not (Path(options.model) / "tokenizer.json").exists():
        absent = f"there is no model in {options.model}: make model, or --model DIRECTORY"
        missing |= {name: absent for name in names if name in ("batchgen-chat", "run-batch")}
    for name, reason in missing.items():
        if options.only:
            raise SystemExit(f"{name}: {reason}")
        print(f"{name} is left out: {reason}", file=sys.stderr)
        del contestants[name]
    return contestants


def measure(
    folder: Path, contestants: dict[str, str], options: argparse.Namespace
) -> dict[str, object]:
    """All measurements; the JSON line."""
    task = make_task(folder / "in", options.rows, contestants, options.model)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for repeat in range(options.repeats):
        for name, python in contestants.items():
            took = in_child(python, **task, kind=name, out=str(folder / f"{name}-{repeat}"))
            times[name].append(took["seconds"])
    micros = {name: [1e6 * s / options.rows for s in seconds] for name, seconds in times.items()}
    ratios = show(micros, options)
    result: dict[str, object] = {
        "benchmark": "harness",
        "rows": options.rows,
        "us_per_row": {name: [round(v, 2) for v in values] for name, values in micros.items()},
        "times_batchgen": ratios,
    }
    if "batchgen" in micros:
        result["harness_us_per_row"] = round(statistics.median(micros["batchgen"]), 2)
    if options.memory_rows:
        result |= measure_memory(folder, contestants, options)
    elif options.resume:
        result |= measure_resume(task["shards"], str(folder / "batchgen-0"))
    return result


def make_task(
    folder: Path, num_rows: int, contestants: Iterable[str], model: str
) -> dict[str, Any]:
    """The input of a measurement: shards, and where run-batch takes part also its own format."""
    task: dict[str, Any] = {"shards": make_shards(folder, num_rows), "model": model}
    if any(name.startswith("run-batch") for name in contestants):
        from stubbed_run_batch import write_requests

        task["requests"] = write_requests(task["shards"], folder / "requests.jsonl", model)
    return task


def show(micros: dict[str, list[float]], options: argparse.Namespace) -> dict[str, float]:
    """The table; how many times as much each other tool costs as batchgen for the same work."""
    print(f"{options.rows:,} rows of about 1 kB, {options.repeats} repeats, interleaved")
    print("contestant       µs/row (median)   fastest   slowest   ÷ batchgen, same work")
    ratios = {}
    for name, values in micros.items():
        median = statistics.median(values)
        line = f"{name:16s} {median:15.1f} {min(values):9.1f} {max(values):9.1f}"
        if (like := LIKE.get(name)) in micros:
            ratios[name] = round(median / statistics.median(micros[like]), 2)
            line += f"   {ratios[name]:5.1f} ({like})"
        print(line)
    return ratios


def measure_memory(
    folder: Path, contestants: dict[str, str], options: argparse.Namespace
) -> dict[str, object]:
    """Peak resident memory at 10,000 rows and at `--memory-rows`, in MB.

    Ray is left out: its memory is that of a cluster of processes, and a store set aside at start.
    """
    peaks: dict[str, dict[int, float]] = {name: {} for name in contestants if name != "ray"}
    extra: dict[str, object] = {}
    print("peak memory          rows   seconds        MB")
    for rows in (10_000, options.memory_rows):
        task = make_task(folder / f"memory-{rows}", rows, peaks, options.model)
        for name, by_rows in peaks.items():
            out = str(folder / f"memory-{name}-{rows}")
            took = in_child(**task, kind=name, out=out)
            by_rows[rows] = round(took["peak_mb"], 1)
            print(f"{name:14s} {rows:10,} {took['seconds']:9.1f} {took['peak_mb']:9.0f}")
            if options.resume and name == "batchgen" and rows == options.memory_rows:
                extra = measure_resume(task["shards"], out)
    growth = {name: round(p[options.memory_rows] - p[10_000], 1) for name, p in peaks.items()}
    for name, value in growth.items():
        print(f"growth of {name}: {value} MB")
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


def write_chat_job(shards: list[str], out: str, model: str) -> str:
    """The same job with conversations, and the chat template and tokenizer of a model."""
    path = Path(write_job(shards, out))
    job = json.loads(path.read_text())
    job["prompt"] = {"messages": [{"role": "user", "content": "{{ text }}"}]}
    job["model"]["tokenizer"] = model
    path.write_text(json.dumps(job))
    return str(path)


def in_child(python: str = sys.executable, **task: object) -> dict[str, float]:
    """Run one measurement in a process of its own."""
    from processes import require_success, run_watched

    watched = run_watched([python, __file__, "--child", json.dumps(task)], weighs=False)
    require_success(watched, str(task["kind"]))
    result: dict[str, float] = json.loads(watched.stdout.splitlines()[-1])
    return result


def child(task: dict[str, Any]) -> dict[str, float]:
    """One measurement: seconds, and the peak memory of this process in MB."""
    match task["kind"]:
        case "batchgen":
            seconds = timed_job(write_job(task["shards"], task["out"]))
        case "batchgen-chat":
            seconds = timed_job(write_chat_job(task["shards"], task["out"], task["model"]))
        case "ray":
            seconds = run_ray(task["shards"], task["out"])
        case kind:
            from stubbed_run_batch import run_stubbed

            is_bare = kind == "run-batch-bare"
            seconds = run_stubbed(
                task["requests"], f"{task['out']}.jsonl", task["model"], bare=is_bare
            )
    return {"seconds": seconds, "peak_mb": peak_mb()}


def timed_job(path: str) -> float:
    """Seconds of a job, imports left out."""
    from batchgen.config.loading import load_job
    from batchgen.corpus.tokenizing import load_tokenizer
    from batchgen.run.execution import Execution  # noqa: F401  (imports are not what is measured)
    from batchgen.run.job import run_job

    job = load_job(path)
    load_tokenizer(job.model, job.prompt)
    began = time.perf_counter()
    summary = run_job(job)
    seconds = time.perf_counter() - began
    if summary.exit_code:
        raise SystemExit(f"rows failed: {dict(summary.failed_by_type)}")
    return seconds


def run_ray(shards: list[str], out: str) -> float:
    """Ray Data: read, a map that adds a text, write; nothing is journaled or ordered."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=str(Path(out).parent / "ray"),
    )
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
