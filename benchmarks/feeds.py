"""A whole `batchgen run` against `LLM.generate` (one call, a loop) and padded static batches.

Batches that wait for their longest row leave slots empty, the more so the more uneven the lengths
are; so output lengths here are log-normal, fixed for each row (`max_tokens` from a column, with
ignore_eos). All contestants get the same prompts, lengths and engine settings. The one-shot call
and the loop get token ids that are in memory already; `batchgen run` reads Parquet, tokenizes,
journals and writes Parquet meanwhile. Each measurement is a process of its own, repeats are
interleaved, and engine start-up is not counted.

    python benchmarks/feeds.py                                   # tiny random model, 10 minutes
    python benchmarks/feeds.py --batch-sizes 16,64,512,4096      # does batch.size matter?
    python benchmarks/feeds.py --model models/smollm2-135m --rows 200 --mean-tokens 32
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

TOKENIZER = "models/smollm2-135m"
STATIC_ROWS = 128
"""Padded batches are so slow that the first rows have to do."""


def main() -> None:
    """Measure every contestant in turn; a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="directory; a tiny random Llama is made without it")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--mean-tokens", type=int, default=64)
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-sizes", default="512")
    parser.add_argument("--contestants", default="one_shot,loop,static,run")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(child(json.loads(options.child))))
        return
    with tempfile.TemporaryDirectory(prefix="feeds-") as name:
        compete(Path(name), options)


def compete(folder: Path, options: argparse.Namespace) -> None:
    """Make the rows and the model, run the contestants, report."""
    model = options.model or make_model(folder / "model")
    shard = make_rows(folder, options.rows, options.mean_tokens, options.sigma)
    sizes = [int(size) for size in options.batch_sizes.split(",")]
    contestants: list[tuple[str, int]] = []
    for kind in options.contestants.split(","):
        contestants += [(kind, size) for size in sizes] if kind == "run" else [(kind, 0)]
    results: dict[tuple[str, int], list[dict[str, float]]] = {key: [] for key in contestants}
    for repeat in range(options.repeats):
        for kind, size in contestants:
            task = {
                "kind": kind,
                "size": size,
                "model": model,
                "shard": shard,
                "slots": options.slots,
                "out": str(folder / f"{kind}-{size}-{repeat}"),
            }
            results[kind, size].append(in_child(task))
    report(results, options)


def in_child(task: dict[str, object]) -> dict[str, float]:
    """Run one measurement in a process of its own."""
    command = [sys.executable, __file__, "--child", json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{task['kind']} failed:\n{done.stderr[-3000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def report(
    results: dict[tuple[str, int], list[dict[str, float]]], options: argparse.Namespace
) -> None:
    """Medians, spread, and rates relative to the one-shot call."""

    def rate(key: tuple[str, int]) -> float:
        return statistics.median(trial["rows_per_s"] for trial in results[key])

    base = rate(("one_shot", 0)) if ("one_shot", 0) in results else None
    print(f"{options.rows} rows, {options.slots} slots, mean {options.mean_tokens} output tokens")
    print("contestant      rows/s   spread   tokens/s   ÷ one-shot   slots in use while rows wait")
    lines = {}
    for (kind, size), trials in results.items():
        name = f"{kind} {size}" if size else kind
        rates = [trial["rows_per_s"] for trial in trials]
        median = statistics.median(rates)
        tokens = statistics.median(trial["tokens_per_s"] for trial in trials)
        relative = median / base if base else float("nan")
        used = [trial["slots_used"] for trial in trials if "slots_used" in trial]
        print(
            f"{name:14s} {median:7.1f} {(max(rates) - min(rates)) / median:8.1%} {tokens:10.0f} "
            f"{relative:12.3f}   {statistics.median(used) if used else float('nan'):.3f}"
        )
        lines[name] = {"rows_per_s": rates, "relative": relative if base else None}
    print(json.dumps({"benchmark": "feeds", "rows": options.rows, "contestants": lines}))


def make_model(path: Path) -> str:
    """A random Llama of two layers with the tokenizer of SmolLM2."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        vocab_size=len(tokenizer),
        tie_word_embeddings=True,
        max_position_embeddings=2048,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def make_rows(folder: Path, num_rows: int, mean_tokens: int, sigma: float) -> str:
    """A shard of real paragraphs, all different, with the output length of each row."""
    rng = random.Random(11)
    texts = [
        row["text"]
        for path in sorted(Path("data/samples").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    mu = math.log(mean_tokens) - sigma**2 / 2
    rows = []
    for number in range(num_rows):
        words = rng.choice(texts).split()
        start = rng.randrange(max(1, len(words) - 60))
        length = int(min(max(rng.lognormvariate(mu, sigma), 4), 8 * mean_tokens))
        text = f"{number}: " + " ".join(words[start : start + 60])
        rows.append({"id": number, "text": text, "length": length})
    path = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def child(task: dict[str, object]) -> dict[str, float]:
    """One measurement."""
    kinds = {"run": run_batchgen, "job": run_job_as_is, "static": run_static}
    return kinds.get(str(task["kind"]), run_vllm)(task)


def engine_settings(task: dict[str, object]) -> dict[str, object]:
    """Engine arguments of every contestant, beyond what batchgen chooses for a CPU anyway."""
    return {"enable_prefix_caching": False, "kv_cache_memory_bytes": 1 << 30}


def run_batchgen(task: dict[str, object]) -> dict[str, float]:
    """The whole run; the seconds are those from the first row fed to the last one finished."""
    job = {
        "input": {"paths": [task["shard"]]},
        "prompt": {"template": "{{ text }}"},
        "model": {
            "name": task["model"],
            "max_model_len": 1024,
            "max_num_seqs": task["slots"],
            "extra": engine_settings(task),
        },
        "sampling": {"temperature": 0.0, "ignore_eos": True, "max_tokens": {"column": "length"}},
        "batch": {"size": task["size"]},
        "output": {"path": task["out"]},
    }
    return run_job_as_is({**task, "job": job, "overrides": []})


def run_job_as_is(task: dict[str, object]) -> dict[str, float]:
    """A run of the job in the task; rates are those of the time in which rows were generated."""
    from batchgen import read_batches, read_outputs, run_job
    from batchgen.config.loading import load_job

    path = Path(f"{task['out']}.yaml")
    path.write_text(json.dumps(task["job"]))
    job = load_job(path, list(task["overrides"]))  # type: ignore[call-overload]
    summary = run_job(job)
    outputs, batches = read_outputs(task["out"]), read_batches(task["out"])
    if len(outputs) != summary.num_ok:
        raise SystemExit(f"rows failed: {dict(summary.failed_by_type)}")
    # The last batch is the tail, when no row is left that could take a free slot.
    busy = batches[batches.closed_by == "size"]
    slots = summary.engine["max_num_seqs"]
    seconds = summary.generate_s
    return {
        "rows_per_s": summary.num_rows / seconds,
        "tokens_per_s": summary.num_output_tokens / seconds,
        "slots_used": float(
            (busy.num_running_mean * busy.wall_s).sum() / busy.wall_s.sum() / slots
        ),
        "computed": summary.num_prompt_tokens - (summary.num_cached_tokens or 0),
        "seconds": seconds,
    }


def run_static(task: dict[str, object]) -> dict[str, float]:
    """Hugging Face `generate` on padded batches: each waits for its longest row."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = pq.read_table(str(task["shard"])).to_pylist()[:STATIC_ROWS]
    tokenizer = AutoTokenizer.from_pretrained(str(task["model"]), padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(str(task["model"]))
    slots = int(str(task["slots"]))
    wanted = 0
    began = time.perf_counter()
    for start in range(0, len(rows), slots):
        batch = rows[start : start + slots]
        inputs = tokenizer([row["text"] for row in batch], return_tensors="pt", padding=True)
        longest = max(row["length"] for row in batch)
        with torch.inference_mode():
            model.generate(
                **inputs, do_sample=False, min_new_tokens=longest, max_new_tokens=longest
            )
        wanted += sum(row["length"] for row in batch)
    seconds = time.perf_counter() - began
    return {"rows_per_s": len(rows) / seconds, "tokens_per_s": wanted / seconds}


def run_vllm(task: dict[str, object]) -> dict[str, float]:
    """`LLM.generate`: one call for everything, or one for each `slots` rows."""
    from batchgen.config.models import ModelConfig
    from batchgen.engine.vllm_settings import settings_for

    model = ModelConfig(
        name=str(task["model"]),
        max_model_len=1024,
        max_num_seqs=int(str(task["slots"])),
        extra=engine_settings(task),
    )
    settings = settings_for(model, os.environ)
    os.environ.update(settings.environment)
    from vllm import LLM, SamplingParams

    llm = LLM(model=model.name, **{**settings.arguments, "disable_log_stats": True})
    rows = pq.read_table(str(task["shard"])).to_pylist()
    tokenizer = llm.get_tokenizer()
    prompts = [{"prompt_token_ids": tokenizer(row["text"])["input_ids"]} for row in rows]
    params = [
        SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=row["length"]) for row in rows
    ]
    size = len(rows) if task["kind"] == "one_shot" else int(str(task["slots"]))
    num_tokens = 0
    began = time.perf_counter()
    for start in range(0, len(rows), size):
        stop = start + size
        outputs = llm.generate(prompts[start:stop], params[start:stop], use_tqdm=False)
        num_tokens += sum(len(output.outputs[0].token_ids) for output in outputs)
    seconds = time.perf_counter() - began
    return {"rows_per_s": len(rows) / seconds, "tokens_per_s": num_tokens / seconds}


if __name__ == "__main__":
    main()
