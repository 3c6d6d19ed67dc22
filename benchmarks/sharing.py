"""What shared prompts are worth: `order: prefix` and `dedupe`, on real vLLM.

Prefix: groups of rows share a long start and come shuffled. A cache that is smaller than all
starts together loses one before its next row comes, so in input order most starts are computed
again and again. The measure is prefill tokens computed divided by the tokens of the prefix tree of
all prompts (each distinct start counted once). The engine shares whole KV blocks alone, so the
last, partly filled block of a start is computed by every row: the second ratio is against what the
best order could reach with such blocks. Prompts that share nothing show what the ordering costs
where it cannot help. Dedupe: half of the prompts are copies; the measure is wall time without over
with it.

    python benchmarks/sharing.py
    python benchmarks/sharing.py --rows 400 --repeats 1
"""

import argparse
import json
import random
import statistics
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from feeds import in_child as feeds_child
from feeds import make_model

PREFIX_WORDS = 420
SUFFIX_WORDS = 30
GROUP_ROWS = 16
BLOCK_TOKENS = 32


def main() -> None:
    """Measure both, print tables and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=640)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sharing-") as name:
        folder = Path(name)
        model = make_model(folder / "model")
        result = {
            "benchmark": "sharing",
            "prefix": measure_prefix(folder, model, options),
            "dedupe": measure_dedupe(folder, model, options),
        }
    print(json.dumps(result))


def measure_prefix(folder: Path, model: str, options: argparse.Namespace) -> dict[str, object]:
    """Prefill tokens against the prefix tree, and rows per second, by order."""
    shared = write(folder / "shared.parquet", shared_prompts(options.rows, GROUP_ROWS))
    alone = write(folder / "alone.parquet", shared_prompts(options.rows, 1))
    trials: dict[tuple[str, str], list[dict[str, float]]] = {}
    for repeat in range(options.repeats):
        for name, shard in (("shared", shared), ("alone", alone)):
            for order in ("input", "longest_first", "prefix"):
                out = folder / f"{name}-{order}-{repeat}"
                trial = run(model, shard, out, f"batch.order={order}", "batch.dedupe=false")
                trials.setdefault((name, order), []).append(trial)
    ids = {"shared": token_ids(model, shared), "alone": token_ids(model, alone)}
    print("prompts   order           prefill ÷ tree   ÷ tree of whole blocks   rows/s   spread")
    lines: dict[str, object] = {}
    for (name, order), runs in trials.items():
        computed = statistics.median(trial["computed"] for trial in runs)
        ratio, of_blocks = computed / tree_tokens(ids[name]), computed / block_tokens(ids[name])
        rates = [trial["rows_per_s"] for trial in runs]
        median = statistics.median(rates)
        spread = (max(rates) - min(rates)) / median
        print(f"{name:9s} {order:15s} {ratio:14.3f} {of_blocks:24.3f} {median:8.1f} {spread:8.1%}")
        lines[f"{name} {order}"] = {
            "prefill_over_tree": round(ratio, 4),
            "prefill_over_block_tree": round(of_blocks, 4),
            "rows_per_s": rates,
        }
    return lines


def measure_dedupe(folder: Path, model: str, options: argparse.Namespace) -> dict[str, object]:
    """Wall time without dedupe over wall time with it, half of the prompts being copies."""
    rng = random.Random(3)
    texts = shared_prompts(options.rows // 2, 1, words=60)
    shard = write(folder / "copies.parquet", rng.sample(texts + texts, len(texts) * 2))
    seconds: dict[str, list[float]] = {"true": [], "false": []}
    for repeat in range(options.repeats):
        for dedupe, values in seconds.items():
            out = folder / f"dedupe-{dedupe}-{repeat}"
            values.append(run(model, shard, out, f"batch.dedupe={dedupe}")["seconds"])
    ratio = statistics.median(seconds["false"]) / statistics.median(seconds["true"])
    print(f"half of {options.rows} prompts are copies: wall time ÷ with dedupe {ratio:.2f}")
    return {"ratio": round(ratio, 3), "seconds": seconds}


def shared_prompts(num_rows: int, group_rows: int, words: int = PREFIX_WORDS) -> list[str]:
    """Prompts of which each `group_rows` share their start; shuffled."""
    rng = random.Random(5)
    vocabulary = [
        word
        for path in sorted(Path("data/samples").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
        for word in row["text"].split()
    ]
    prompts = []
    for group in range(num_rows // group_rows):
        start = " ".join([f"Group {group}:", *rng.choices(vocabulary, k=words)])
        prompts += [
            f"{start} Question {row}: " + " ".join(rng.choices(vocabulary, k=SUFFIX_WORDS))
            for row in range(group_rows)
        ]
    rng.shuffle(prompts)
    return prompts


def write(path: Path, texts: list[str]) -> str:
    """A shard of these texts."""
    pq.write_table(pa.table({"id": list(range(len(texts))), "text": texts}), path)
    return str(path)


def token_ids(model: str, shard: str) -> list[list[int]]:
    """Token ids of all prompts of a shard."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = pq.read_table(shard).column("text").to_pylist()
    ids: list[list[int]] = tokenizer(texts)["input_ids"]
    return ids


def tree_tokens(prompts: list[list[int]]) -> int:
    """Tokens of the prefix tree of these prompts: each distinct start once."""
    total, previous = 0, []
    for row in sorted(prompts):
        common = 0
        while common < min(len(row), len(previous)) and row[common] == previous[common]:
            common += 1
        total += len(row) - common
        previous = row
    return total


def block_tokens(prompts: list[list[int]]) -> int:
    """The least prefill if only whole KV blocks are shared; a token at least is computed."""
    seen: set[tuple[int, ...]] = set()
    total = 0
    for row in prompts:
        num_shared = 0
        for end in range(BLOCK_TOKENS, len(row), BLOCK_TOKENS):
            start = tuple(row[:end])
            if start in seen:
                num_shared = end
            seen.add(start)
        total += len(row) - num_shared
    return total


def run(model: str, shard: str, out: Path, *overrides: str) -> dict[str, float]:
    """One run in a process of its own."""
    return feeds_child(
        {
            "kind": "job",
            "out": str(out),
            "overrides": overrides,
            "job": {
                "input": {"paths": [shard]},
                "prompt": {"template": "{{ text }}"},
                "model": {
                    "name": model,
                    "max_model_len": 1024,
                    "max_num_seqs": 16,
                    # 16 KV blocks beyond what 16 running rows take: the cache has to be used well.
                    "extra": {
                        "block_size": BLOCK_TOKENS,
                        "num_gpu_blocks_override": 16 * 24 + 160,
                    },
                },
                "sampling": {"temperature": 0.0, "ignore_eos": True, "max_tokens": 16},
                "output": {"path": str(out)},
            },
        }
    )


if __name__ == "__main__":
    main()
