"""A whole `batchgen run` against vLLM's own batch runner, `vllm run-batch`, on the same rows.

Both get the same model, conversations, output lengths (log-normal, fixed for each row with
ignore_eos) and engine arguments, prefix caching off. Each runs as its users run it, as a process
that loads the model and ends: run-batch with vLLM's engine in processes of its own, which on a CPU
leaves one core to the scheduler and computes on the others, batchgen as it decides for the machine
(on a CPU all in one process, all cores computing). `run-batch-tuned` is run-batch with the thread
settings that batchgen chooses, so that what is left of the difference is not a matter of threads;
`batchgen-multiprocess` is the reverse. On a GPU these two differ from the plain ones by little.

Three measures. Rows per second: of the engine phase (first row in the engine to last one finished)
and of the whole process. The first durable row: how long until a `kill -9` would leave a finished
row on disk. Peak memory of all processes; for that at 200,000 rows, without an engine, see
`harness.py --memory-rows 200000`. Token counts of both are compared row by row.

    python benchmarks/run_batch.py                        # tiny random model, some 10 minutes
    python benchmarks/run_batch.py --model models/smollm2-135m --rows 200 --mean-tokens 32
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from feeds import make_model, make_rows
from processes import OFFLINE, Watched, is_written, require_success, run_watched

MAX_MODEL_LEN = 1024
TUNED = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "TORCHDYNAMO_DISABLE")
"""Of the variables that batchgen sets on a CPU, those that concern computing."""
MEASURES = {
    "rows_per_s": "rows/s",
    "rows_per_s_wall": "rows/s wall",
    "wall_s": "wall s",
    "ready_s": "ready s",
    "first_durable_s": "1st durable s",
    "first_durable_after_ready_s": "after ready s",
    "peak_mb": "peak MB",
}


def main() -> None:
    """Measure every contestant in turn; a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="directory; a tiny random Llama is made without it")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--mean-tokens", type=int, default=64)
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--block-size", type=int, help="of the KV cache; vLLM's default without it")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--contestants", default="batchgen,run-batch,run-batch-tuned")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for one measurement")
    parser.add_argument("--child", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        timed_run_batch(options.child)
        return
    with tempfile.TemporaryDirectory(prefix="run-batch-") as name:
        compete(Path(name), options)


def compete(folder: Path, options: argparse.Namespace) -> None:
    """Make the rows and the model, run the contestants, report."""
    model = options.model or make_model(folder / "model")
    shard = make_rows(folder, options.rows, options.mean_tokens, options.sigma)
    requests = write_requests(folder, shard, model)
    contestants = options.contestants.split(",")
    trials: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    num_prompt_tokens: list[int] | None = None
    for repeat in range(options.repeats):
        for name in contestants:
            out = folder / f"{name}-{repeat}"
            if name.startswith("batchgen"):
                trial, counts = run_batchgen(name, shard, model, out, options)
            else:
                trial, counts = run_other(name, requests, model, out, options)
            check_lengths(name, [output for _, output in counts], shard)
            prompts = [prompt for prompt, _ in counts]
            num_prompt_tokens = num_prompt_tokens or prompts
            if prompts != num_prompt_tokens:
                raise SystemExit(f"{name}: its prompts are not those of {contestants[0]}")
            trials[name].append(trial)
            print(f"{name}: {trial['wall_s']:.0f} s", file=sys.stderr, flush=True)
    report(trials, options)


def write_requests(folder: Path, shard: str, model: str) -> str:
    """The rows in the OpenAI batch format, which run-batch reads."""
    path = folder / "requests.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for row in pq.read_table(shard).to_pylist():
            body = {
                "model": model,
                "messages": [{"role": "user", "content": row["text"]}],
                "max_tokens": row["length"],
                "temperature": 0.0,
                "ignore_eos": True,
            }
            request = {
                "custom_id": str(row["id"]),
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": body,
            }
            file.write(json.dumps(request) + "\n")
    return str(path)


def engine_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Engine arguments of every contestant, beyond what batchgen chooses for the machine."""
    settings: dict[str, Any] = {
        "enable_prefix_caching": False,
        "kv_cache_memory_bytes": 1 << 30,
        # vLLM's own default differs between `LLM` and its servers.
        "max_num_batched_tokens": 4096,
    }
    if options.block_size is not None:
        settings["block_size"] = options.block_size
    return settings


def chosen_settings(model: str, options: argparse.Namespace) -> Any:
    """What batchgen gives to vLLM on this machine: arguments and environment."""
    from batchgen.config.models import ModelConfig
    from batchgen.engine.vllm_settings import settings_for

    config = ModelConfig(
        name=model,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=options.slots,
        extra=engine_settings(options),
    )
    return settings_for(config, {})


def run_batchgen(
    name: str, shard: str, model: str, out: Path, options: argparse.Namespace
) -> tuple[dict[str, float], list[tuple[int, int]]]:
    """`batchgen run` as a process; measures, and the token counts of each row."""
    from batchgen import read_batches, read_outputs
    from batchgen.output.layout import RunLayout

    job = {
        "input": {"paths": [shard]},
        "prompt": {"messages": [{"role": "user", "content": "{{ text }}"}]},
        "model": {
            "name": model,
            "max_model_len": MAX_MODEL_LEN,
            "max_num_seqs": options.slots,
            "extra": engine_settings(options),
        },
        "sampling": {"temperature": 0.0, "ignore_eos": True, "max_tokens": {"column": "length"}},
        "output": {"path": str(out)},
    }
    path = Path(f"{out}.yaml")
    path.write_text(json.dumps(job))
    environment = {"HF_HUB_OFFLINE": "1"}
    if name == "batchgen-multiprocess":
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    watched = run_watched(
        [sys.executable, "-m", "batchgen", "run", str(path), "--json", "--quiet"],
        watch={"durable": lambda: holds_rows(RunLayout(out).journal)},
        environment=environment,
        timeout_s=options.timeout,
    )
    require_success(watched, name)
    answer = json.loads(watched.stdout.splitlines()[-1])
    first_batch = read_batches(out).iloc[0]
    ready_s = first_batch.started_at.tz_convert(UTC).timestamp() - watched.began_at
    trial = measures(watched, options.rows, ready_s, answer["generate_s"])
    trial["first_batch_s"] = float(first_batch.wall_s)
    outputs = read_outputs(out)
    counts = list(zip(outputs.num_prompt_tokens, outputs.num_output_tokens, strict=True))
    return trial, counts


def run_other(
    name: str, requests: str, model: str, out: Path, options: argparse.Namespace
) -> tuple[dict[str, float], list[tuple[int, int]]]:
    """`vllm run-batch` as a process; measures, and the token counts of each row."""
    chosen = chosen_settings(model, options)
    environment = {**OFFLINE, "VLLM_PLUGINS": ""}
    if name == "run-batch-tuned":
        environment |= {key: chosen.environment[key] for key in TUNED if key in chosen.environment}
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    flags = ["-i", requests, "-o", str(out), "--model", model, *as_flags(chosen.arguments)]
    watched = run_watched(
        [sys.executable, __file__, "--child", *flags],
        watch={"durable": lambda: is_written(out)},
        environment=environment,
        timeout_s=options.timeout,
    )
    require_success(watched, name)
    stamps = json.loads(watched.stdout.splitlines()[-1])
    ready_s = stamps["began"] - watched.began_at
    counts = []
    for line in out.read_text(encoding="utf-8").splitlines():
        body = json.loads(line)["response"]["body"]
        if body is None:
            raise SystemExit(f"{name}: a row failed: {line[:1000]}")
        counts.append((body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]))
    return measures(watched, options.rows, ready_s, stamps["ended"] - stamps["began"]), counts


def as_flags(arguments: dict[str, Any]) -> list[str]:
    """Arguments of `vllm.LLM` as options of vLLM's command line."""
    flags: list[str] = []
    for name, value in arguments.items():
        option = name.replace("_", "-")
        if name == "disable_log_stats":
            continue  # off by default there
        if isinstance(value, bool):
            flags.append(f"--{option}" if value else f"--no-{option}")
        else:
            flags += [f"--{option}", str(value)]
    return flags


def timed_run_batch(flags: list[str]) -> None:
    """run-batch itself, in a process of its own, with a clock beside it.

    The phase begins when all requests are handed to the engine and ends when the last response is
    there. run-batch has no such numbers, so two of its functions note the time before they work.
    """
    try:
        from vllm.entrypoints.launchers import run_batch
    except ImportError as exc:
        raise SystemExit(f"run-batch needs vllm: {exc}; make install, or pip install vllm") from exc
    stamps: dict[str, float] = {}
    show_bar, write_file = run_batch.BatchProgressTracker.pbar, run_batch.write_file

    def note_begin(tracker: Any) -> Any:
        stamps["began"] = time.time()
        return show_bar(tracker)

    async def note_end(*arguments: Any) -> None:
        stamps["ended"] = time.time()
        await write_file(*arguments)

    run_batch.BatchProgressTracker.pbar, run_batch.write_file = note_begin, note_end
    sys.argv = ["run_batch", *flags]
    asyncio.run(run_batch.main(run_batch.parse_args()))
    print(json.dumps(stamps), flush=True)


def measures(watched: Watched, num_rows: int, ready_s: float, engine_s: float) -> dict[str, float]:
    """What is compared; seconds count from the start of the process."""
    return {
        "wall_s": watched.seconds,
        "ready_s": ready_s,
        "engine_s": engine_s,
        "rows_per_s": num_rows / engine_s,
        "rows_per_s_wall": num_rows / watched.seconds,
        "first_durable_s": watched.seen_s["durable"],
        "first_durable_after_ready_s": watched.seen_s["durable"] - ready_s,
        "peak_mb": watched.peak_mb,
    }


def check_lengths(name: str, num_output_tokens: list[int], shard: str) -> None:
    """Exit where a row does not have the output length that was asked for."""
    lengths = pq.read_table(shard, columns=["length"]).column("length").to_pylist()
    if num_output_tokens != lengths:
        raise SystemExit(f"{name}: rows do not have the output lengths that were asked for")


def holds_rows(journal: Path) -> bool:
    """Whether a finished row is in a run's journal."""
    from batchgen.output.journal import RowsFrame, SegmentReader, list_segments

    return any(
        isinstance(frame, RowsFrame)
        for segment in list_segments(journal)
        for _, frame in SegmentReader(journal, segment)
    )


def report(trials: dict[str, list[dict[str, float]]], options: argparse.Namespace) -> None:
    """Medians, spread of the rate, ratios to run-batch; one JSON line."""

    def median(name: str, measure: str) -> float:
        return statistics.median(trial[measure] for trial in trials[name])

    print(
        f"{options.rows} rows, {options.slots} slots, mean {options.mean_tokens} output tokens, "
        f"{os.cpu_count()} cores, {options.repeats} repeats, interleaved"
    )
    print("contestant            spread" + "".join(f"{title:>15}" for title in MEASURES.values()))
    for name, runs in trials.items():
        rates = [run["rows_per_s"] for run in runs]
        spread = (max(rates) - min(rates)) / statistics.median(rates)
        values = "".join(f"{median(name, measure):15.1f}" for measure in MEASURES)
        print(f"{name:22s}{spread:6.1%}{values}")
    if "batchgen" in trials:
        batch_s = median("batchgen", "first_batch_s")
        print(f"batchgen's first batch was full after {batch_s:.1f} s")
    ratios: dict[str, dict[str, float]] = {}
    for other in trials:
        if "batchgen" in trials and not other.startswith("batchgen"):
            ratios[other] = {
                measure: round(median("batchgen", measure) / median(other, measure), 3)
                for measure in MEASURES
            }
            shown = ", ".join(f"{MEASURES[key]} {value}" for key, value in ratios[other].items())
            print(f"batchgen ÷ {other}: {shown}")
    result = {
        "benchmark": "run_batch",
        "rows": options.rows,
        "slots": options.slots,
        "model": options.model or "tiny",
        "trials": trials,
        "batchgen_divided_by": ratios,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
