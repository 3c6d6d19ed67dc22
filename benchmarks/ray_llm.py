"""A whole `batchgen run` against Ray Data LLM on one node, on the same rows.

Both read the same Parquet shard, apply the chat template, generate with the same model, output
lengths (log-normal, fixed for each row with ignore_eos) and engine arguments (prefix caching off),
and write Parquet. Ray Data LLM runs with its defaults: batches of 32 rows, eight of them in the
engine at a time, stages for template, tokens and text beside it. Each measurement is a process of
its own, from start to end: a cluster of one node is started and stopped with it. The engine phase
is the time from the first request that entered vLLM to the last token, by vLLM's own clock for Ray
Data LLM, and batchgen's `generate_s`.

Without a GPU the cluster is told that it has one, since Ray Data LLM asks for it; vLLM's CPU build
does not look. There it leaves one core to vLLM's scheduler and computes on the others, which is
vLLM's default; `ray-tuned` has the thread settings that batchgen chooses. It asks for more logical
CPUs than a small machine has, one for each stage: it gets as many (`--ray-cpus`), and they share
the cores.

Ray is no dependency of batchgen; give an interpreter that has it and vLLM.

    python benchmarks/ray_llm.py --ray-python /tmp/ray-venv/bin/python       # some 12 minutes
    python benchmarks/ray_llm.py --ray-python ... --model models/smollm2-135m --rows 200
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from feeds import make_model, make_rows
from processes import OFFLINE, RAY_RECIPE, ray_python, require_success, run_watched
from run_batch import TUNED, chosen_settings, run_batchgen

MEASURES = {
    "rows_per_s": "rows/s",
    "rows_per_s_wall": "rows/s wall",
    "wall_s": "wall s",
    "cluster_s": "cluster s",
    "engine_s": "engine s",
    "peak_mb": "peak MB",
}
COLUMNS = ["id", "generated_text", "num_input_tokens", "num_generated_tokens", "began", "ended"]
"""What Ray Data LLM is to write of each row."""


def main() -> None:
    """Measure every contestant in turn; a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ray-python", help="an interpreter that has ray and vllm")
    parser.add_argument("--model", help="directory; a tiny random Llama is made without it")
    parser.add_argument("--rows", type=int, default=768)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--mean-tokens", type=int, default=64)
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--block-size", type=int, help="of the KV cache; vLLM's default without it")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--contestants", default="batchgen,ray,ray-tuned")
    parser.add_argument("--ray-batch-size", type=int, default=32)
    parser.add_argument("--ray-cpus", type=int, default=max(8, os.cpu_count() or 1))
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one measurement")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(run_ray_llm(json.loads(options.child))), flush=True)
        return
    # A short path: Ray's sockets lie below it, and their names may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="rayllm-") as name:
        compete(Path(name), options)


def compete(folder: Path, options: argparse.Namespace) -> None:
    """Make the rows and the model, run the contestants, report."""
    python = ray_python(options.ray_python, sys.executable)
    contestants = options.contestants.split(",")
    if python is None and any(name.startswith("ray") for name in contestants):
        raise SystemExit(f"ray is not installed; {RAY_RECIPE}")
    model = str(Path(options.model or make_model(folder / "model")).resolve())
    shard = make_rows(folder, options.rows, options.mean_tokens, options.sigma)
    trials: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    lengths: list[tuple[int, int]] | None = None
    for repeat in range(options.repeats):
        for name in contestants:
            out = folder / f"{name}-{repeat}"
            if name.startswith("batchgen"):
                trial, counts = run_batchgen(name, shard, model, out, options)
            else:
                trial, counts = run_ray(str(python), name, shard, model, out, options)
            lengths = lengths or counts
            if counts != lengths:
                raise SystemExit(f"{name}: its prompts or outputs have other lengths")
            trials[name].append(trial)
            print(f"{name}: {trial['wall_s']:.0f} s", file=sys.stderr, flush=True)
    report(trials, options)


def run_ray(
    python: str, name: str, shard: str, model: str, out: Path, options: argparse.Namespace
) -> tuple[dict[str, float], list[tuple[int, int]]]:
    """Ray Data LLM as a process; measures, and the token counts of each row."""
    chosen = chosen_settings(model, options)
    environment = {**OFFLINE, "VLLM_PLUGINS": "", "RAY_USAGE_STATS_ENABLED": "0"}
    if name == "ray-tuned":
        environment |= {key: chosen.environment[key] for key in TUNED if key in chosen.environment}
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    task = {
        "shard": shard,
        "model": model,
        "out": str(out),
        "temporary": str(out.parent / "ray"),
        "arguments": {k: v for k, v in chosen.arguments.items() if k != "use_tqdm_on_load"},
        "environment": environment,
        "batch_size": options.ray_batch_size,
        "num_cpus": options.ray_cpus,
    }
    watched = run_watched(
        [python, __file__, "--child", json.dumps(task)],
        environment=environment,
        timeout_s=options.timeout,
    )
    require_success(watched, name)
    answer = json.loads(watched.stdout.splitlines()[-1])
    table = ds.dataset(out).to_table(columns=COLUMNS).sort_by("id")
    if table.column("id").to_pylist() != list(range(options.rows)):
        raise SystemExit(f"{name}: rows are missing")
    began, ended = table.column("began").to_pylist(), table.column("ended").to_pylist()
    engine_s = max(ended) - min(began)
    counts = list(
        zip(
            table.column("num_input_tokens").to_pylist(),
            table.column("num_generated_tokens").to_pylist(),
            strict=True,
        )
    )
    trial = {
        "wall_s": watched.seconds,
        "cluster_s": answer["cluster_s"],
        "data_s": answer["data_s"],
        "engine_s": engine_s,
        "num_in_flight_mean": (sum(ended) - sum(began)) / engine_s,
        "rows_per_s": options.rows / engine_s,
        "rows_per_s_wall": options.rows / watched.seconds,
        "peak_mb": watched.peak_mb,
    }
    return trial, counts


def run_ray_llm(task: dict[str, Any]) -> dict[str, float]:
    """In the interpreter that has Ray: start a cluster, process the shard, stop the cluster."""
    try:
        import ray
        from ray.data.llm import build_processor, vLLMEngineProcessorConfig
    except ImportError as exc:
        raise SystemExit(f"Ray Data LLM is not installed: {exc}") from exc
    began = time.perf_counter()
    environment = {"env_vars": task["environment"]}
    ray.init(
        num_cpus=task["num_cpus"],
        num_gpus=None if has_gpu() else 1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env=environment,
        _temp_dir=task["temporary"],
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    started = time.perf_counter()
    config = vLLMEngineProcessorConfig(
        model_source=task["model"],
        engine_kwargs=task["arguments"],
        batch_size=task["batch_size"],
        runtime_env=environment,
        log_engine_metrics=False,
    )
    processor = build_processor(config, preprocess=request_of, postprocess=answer_of)
    # Batches of one block follow each other; only those of several blocks run side by side.
    rows = ray.data.read_parquet(task["shard"])
    rows = rows.repartition(max(1, rows.count() // task["batch_size"]))
    processor(rows).write_parquet(task["out"])
    ended = time.perf_counter()
    ray.shutdown()
    return {"cluster_s": started - began, "data_s": ended - started}


def request_of(row: dict[str, Any]) -> dict[str, Any]:
    """What Ray Data LLM is to do with a row."""
    return {
        "id": row["id"],
        "messages": [{"role": "user", "content": row["text"]}],
        "sampling_params": {"temperature": 0.0, "ignore_eos": True, "max_tokens": row["length"]},
    }


def answer_of(row: dict[str, Any]) -> dict[str, Any]:
    """What is written of a row; the times are seconds of vLLM's monotonic clock."""
    times = {"began": row["metrics"]["queued_ts"], "ended": row["metrics"]["last_token_ts"]}
    return {name: (row | times)[name] for name in COLUMNS}


def has_gpu() -> bool:
    """Whether Ray will find a GPU by itself."""
    return Path("/dev/nvidia0").exists()


def report(trials: dict[str, list[dict[str, float]]], options: argparse.Namespace) -> None:
    """Medians, spread of the rate, ratios; one JSON line."""

    def median(name: str, measure: str) -> float | None:
        values = [trial[measure] for trial in trials[name] if measure in trial]
        return statistics.median(values) if values else None

    print(
        f"{options.rows} rows, {options.slots} slots, mean {options.mean_tokens} output tokens, "
        f"{os.cpu_count()} cores, {options.repeats} repeats, interleaved"
    )
    print("contestant     spread" + "".join(f"{title:>13}" for title in MEASURES.values()))
    for name, runs in trials.items():
        rates = [run["rows_per_s"] for run in runs]
        spread = (max(rates) - min(rates)) / statistics.median(rates)
        medians = [median(name, measure) for measure in MEASURES]
        values = "".join(f"{'-':>13}" if v is None else f"{v:13.1f}" for v in medians)
        print(f"{name:14s} {spread:6.1%}{values}")
    ratios: dict[str, dict[str, float]] = {}
    for other in trials:
        if "batchgen" not in trials or other.startswith("batchgen"):
            continue
        ratios[other] = {}
        for measure in MEASURES:
            ours, theirs = median("batchgen", measure), median(other, measure)
            if ours is not None and theirs is not None:
                ratios[other][measure] = round(ours / theirs, 3)
        shown = ", ".join(f"{MEASURES[key]} {value}" for key, value in ratios[other].items())
        print(f"batchgen ÷ {other}: {shown}")
    result = {
        "benchmark": "ray_llm",
        "rows": options.rows,
        "slots": options.slots,
        "model": options.model or "tiny",
        "trials": trials,
        "batchgen_divided_by": ratios,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
