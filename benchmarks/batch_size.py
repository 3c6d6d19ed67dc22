"""What batching buys: the same rows in batches of 1, 4, 16 and 64, one `LLM.generate` call each.

A decode step reads all weights whatever the number of sequences in it, so until arithmetic is the
limit a step for 64 rows takes little longer than one for a single row. Every row writes exactly
`--tokens` tokens (ignore_eos), prefix caching is off, one engine serves all sizes in turn, and the
turns are repeated: the table shows medians and the spread of the repeats.

    python benchmarks/batch_size.py                      # SmolLM2-135M in models/, some 20 minutes
    python benchmarks/batch_size.py --rows 16 --sizes 1,16 --repeats 1
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field

from batchgen.config.loading import load_job
from batchgen.config.models import JobConfig
from batchgen.corpus.prompts import PromptBuilder, needed_columns
from batchgen.corpus.readers import PartLimits, read_blocks
from batchgen.corpus.shards import find_shards
from batchgen.corpus.tokenizing import load_tokenizer
from batchgen.engine.factory import create_engine
from batchgen.protocols import Engine
from batchgen.records import Prompt, Request, RowKey

LIMITS = PartLimits(10_000, 1 << 28, 1 << 25, "error_row")


@dataclass(slots=True)
class Trial:
    """One batch size; seconds of each repeat."""

    size: int
    seconds: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """(slowest - fastest) / median."""
        return (max(self.seconds) - min(self.seconds)) / self.median_s


def main() -> None:
    """Measure, print the table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", default="jobs/quickstart.yaml")
    parser.add_argument("--input", default="data/samples/*.parquet")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--max-prompt-tokens", type=int, default=256)
    parser.add_argument("--sizes", default="1,4,16,64")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    job = load_job(
        options.job,
        [
            f"input.paths=['{options.input}']",
            f"sampling={{max_tokens: {options.tokens}, temperature: 0.0, ignore_eos: true}}",
            f"model.max_num_seqs={max(sizes)}",
            f"model.max_model_len={options.max_prompt_tokens + options.tokens + 1}",
            "model.extra={enable_prefix_caching: false}",
            "prompt.on_overlong=truncate_end",
        ],
    )
    prompts = take_prompts(job, options.rows)
    engine = create_engine(
        job.model,
        tokenizer=load_tokenizer(job.model, job.prompt),
        sampling=job.sampling,
    )
    trials = [Trial(size) for size in sizes]
    generate(engine, prompts[: max(sizes)])
    for _ in range(options.repeats):
        for trial in trials:
            trial.seconds.append(in_batches(engine, prompts, trial.size))
    engine.close()
    report(trials, prompts, options.tokens)


def take_prompts(job: JobConfig, num_rows: int) -> list[Prompt]:
    """The first prompts of the job."""
    builder = PromptBuilder(
        job.prompt,
        job.sampling,
        load_tokenizer(job.model, job.prompt),
        max_model_len=job.model.max_model_len or 2048,
        where=job.where,
    )
    columns = needed_columns(job.prompt, job.sampling)
    prompts: list[Prompt] = []
    for shard in find_shards(job.input):
        for block in read_blocks(shard, columns=columns, limits=LIMITS):
            prompts += [item for item in builder.build(block) if isinstance(item, Prompt)]
    return prompts[:num_rows]


def in_batches(engine: Engine, prompts: list[Prompt], size: int) -> float:
    """Seconds for all prompts, `size` of them a call."""
    began = time.perf_counter()
    for start in range(0, len(prompts), size):
        generate(engine, prompts[start : start + size])
    return time.perf_counter() - began


def generate(engine: Engine, prompts: list[Prompt]) -> None:
    """One call of the engine's batch API."""
    requests = [
        Request(
            f"b{index}", prompt.token_ids, prompt.text, prompt.sampling, None, RowKey("b", index)
        )
        for index, prompt in enumerate(prompts)
    ]
    for completion in engine.generate(requests):
        if completion.error is not None:
            raise SystemExit(f"a row failed: {completion.error.message}")


def report(trials: list[Trial], prompts: list[Prompt], tokens: int) -> None:
    """A table for people, one JSON line for programs."""
    num_prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
    baseline = trials[0].median_s
    print(f"{len(prompts)} rows, {num_prompt_tokens} prompt tokens, {tokens} output tokens a row")
    print("batch size   seconds   spread   rows/s   output tokens/s   times batch size 1")
    for trial in trials:
        rate = len(prompts) / trial.median_s
        print(
            f"{trial.size:10d} {trial.median_s:9.1f} {trial.spread:8.1%} {rate:8.2f} "
            f"{rate * tokens:17.1f} {baseline / trial.median_s:20.2f}"
        )
    result = {
        "benchmark": "batch_size",
        "rows": len(prompts),
        "tokens": tokens,
        "seconds": {trial.size: trial.seconds for trial in trials},
        "times_batch_size_1": {t.size: round(baseline / t.median_s, 3) for t in trials},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
