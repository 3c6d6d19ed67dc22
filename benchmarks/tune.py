"""What `batchgen tune` recommends against the best of a full grid of concurrencies.

`tune` starts an engine once and looks at a few concurrencies for a few minutes. Here it is followed
by a second engine on which every concurrency of a grid, the recommended one among them, works
through the same rows, several times, in turn: what a run does, start and end included. These want
many times as many rows as there are slots: the first rows enter all at once, which is prefill at
its cheapest, so that a short run flatters a high concurrency. The ratio is the median throughput of
the recommended one ÷ that of the best one. As the best of many noisy medians is picked, a perfect
recommendation stays below 1 by about the noise.

Rows are real paragraphs with log-normal output lengths, fixed for each row.

    python benchmarks/tune.py                                    # tiny random model, 10 minutes
    python benchmarks/tune.py --model models/smollm2-135m --slots 32 --mean-tokens 24 --rows 512
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from feeds import make_model, make_rows


def main() -> None:
    """Tune, measure the grid, report; a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="directory; a tiny random Llama is made without it")
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--mean-tokens", type=int, default=48)
    parser.add_argument("--sigma", type=float, default=0.6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-minutes", type=float, default=10.0, help="for tune")
    parser.add_argument("--smallest", type=int, default=8, help="the grid begins here")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(child(json.loads(options.child))))
        return
    with tempfile.TemporaryDirectory(prefix="tune-") as name:
        compete(Path(name), options)


def compete(folder: Path, options: argparse.Namespace) -> None:
    """Make rows, model and job; tune; then the grid with what was recommended in it."""
    job = make_job(folder, options)
    task = {"job": job, "repeats": options.repeats, "max_minutes": options.max_minutes}
    tuned = in_child({**task, "kind": "tune"})
    if tuned["recommended"] is None:
        raise SystemExit("tune had no time to recommend anything: give it more --max-minutes")
    recommended = tuned["recommended"]["num_running"]
    numbers = sorted({*grid(options.smallest, options.slots), recommended})
    measured = in_child({**task, "kind": "grid", "numbers": numbers, "rows": options.rows})
    report({int(number): rates for number, rates in measured.items()}, recommended, tuned)


def make_job(folder: Path, options: argparse.Namespace) -> str:
    """A job file over rows with fixed output lengths; its path."""
    job = {
        "input": {"paths": [make_rows(folder, options.rows, options.mean_tokens, options.sigma)]},
        "prompt": {"template": "{{ text }}"},
        "model": {
            "name": options.model or make_model(folder / "model"),
            "max_model_len": 1024,
            "max_num_seqs": options.slots,
            "extra": {"kv_cache_memory_bytes": 1 << 30},
        },
        "sampling": {"temperature": 0.0, "ignore_eos": True, "max_tokens": {"column": "length"}},
        "output": {"path": str(folder / "out")},
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(job))
    return str(path)


def grid(smallest: int, slots: int) -> list[int]:
    """Powers of two and their half-way points, from `smallest` to `slots`."""
    numbers = [slots]
    power = 1
    while power < slots:
        numbers += [power, power + power // 2]
        power *= 2
    return sorted({number for number in numbers if smallest <= number <= slots})


def in_child(task: dict[str, Any]) -> dict[str, Any]:
    """A process of its own for each engine; what it says on the way is shown."""
    command = [sys.executable, __file__, "--child", json.dumps(task)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{task['kind']} failed")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def child(task: dict[str, Any]) -> dict[str, Any]:
    """Tune, or measure the grid."""
    from batchgen.config.loading import load_job

    job = load_job(task["job"])
    return tune(job, task) if task["kind"] == "tune" else measure_grid(job, task)


def tune(job: Any, task: dict[str, Any]) -> dict[str, Any]:
    """The report of `batchgen tune`."""
    from batchgen.bench.tune import TuneOptions, tune_job
    from batchgen.cli.output import Output

    options = TuneOptions(repeats=task["repeats"], max_minutes=task["max_minutes"])
    return tune_job(job, options, console=Output()).to_dict()


def measure_grid(job: Any, task: dict[str, Any]) -> dict[str, list[float]]:
    """Rows per second of each concurrency and repeat, over the same rows in the job's order."""
    from batchgen.bench.trials import run_continuous
    from batchgen.bench.workload import BenchSession, Workload
    from batchgen.schedule.ordering import LengthEstimate, order_block

    rates: dict[str, list[float]] = {str(number): [] for number in task["numbers"]}
    with BenchSession(job, num_rows=task["rows"]) as session:
        rows = order_block(session.workload.prompts, job.batch.order, LengthEstimate())
        workload = Workload(tuple(rows), len(rows), 0)  # type: ignore[arg-type]
        run_continuous(session.engine, workload.first(len(rows) // 8), max(task["numbers"]))
        for repeat in range(task["repeats"]):
            for number in task["numbers"]:
                trial = run_continuous(session.engine, workload, number)
                rates[str(number)].append(trial.rows_per_s)
                line = f"grid: {number} in flight, {trial.rows_per_s:.2f} rows/s"
                print(f"{line} (repeat {repeat + 1})", file=sys.stderr, flush=True)
    return rates


def report(rates: dict[int, list[float]], recommended: int, tuned: dict[str, Any]) -> None:
    """The grid as a table, with the ratio."""
    medians = {number: statistics.median(values) for number, values in rates.items()}
    best = max(medians, key=lambda number: medians[number])
    ratio = medians[recommended] / medians[best]
    print("in flight    rows/s    spread    ÷ best")
    for number, values in rates.items():
        spread = (max(values) - min(values)) / medians[number]
        mark = "  <- recommended" if number == recommended else ""
        share = medians[number] / medians[best]
        print(f"{number:9d} {medians[number]:9.2f} {spread:9.1%} {share:9.3f}{mark}")
    seconds = round(tuned["measured_s"])
    starts = tuned["engine_starts"]
    print(f"tune: {starts} engine start, {seconds} s of measuring; recommended ÷ best {ratio:.3f}")
    answer = {
        "benchmark": "tune",
        "recommended": recommended,
        "knee": tuned["recommended"]["knee"],
        "best_of_grid": best,
        "ratio": ratio,
        "engine_starts": starts,
        "measured_s": tuned["measured_s"],
        "noise": tuned["noise"],
        "grid": {str(number): values for number, values in rates.items()},
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
