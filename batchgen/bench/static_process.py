"""Starts the process that measures static batching, and makes trials of its answers.

It is a process of its own, started when the engine is gone: both want the device's memory for
themselves, and neither should be disturbed by the other's threads. So static batching is measured
after the other ways, not in turn with them.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, BinaryIO, Final

from batchgen.bench.static import StaticTask
from batchgen.bench.trials import Finished, Trial
from batchgen.bench.workload import Workload
from batchgen.config.models import ModelConfig
from batchgen.errors import EngineError
from batchgen.records import Completion, Prompt, Sample
from batchgen.stats.meter import percentiles
from batchgen.stats.occupancy import Occupancy

DTYPES: Final = ("float32", "bfloat16", "float16")
NEEDED: Final = ("torch", "transformers")


def why_not(model: ModelConfig, settings: Mapping[str, Any]) -> str | None:
    """Why this model cannot be measured with transformers, a sentence; None where it can.

    `settings` are those of the started engine.
    """
    if model.engine != "vllm":
        return f"the {model.engine} engine has no weights that transformers could load"
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} is not installed: pip install {' '.join(missing)}"
    if model.extra.get("quantization") or model.extra.get("load_format"):
        return "the engine loads the weights in a way that transformers does not know"
    if settings.get("dtype") not in DTYPES:
        return f"the engine's number format {settings.get('dtype')} is not one of transformers"
    if settings.get("tensor_parallel_size", 1) != 1:
        return "the model is spread over several devices"
    return None


@dataclass(frozen=True, slots=True)
class StaticProcess:
    """What the process needs to know beside the rows."""

    model: ModelConfig
    dtype: str
    device: str
    cpus: Sequence[int]
    environment: Mapping[str, str]
    """The environment as it was before an engine changed it."""
    seed: int

    def trials(
        self, workload: Workload, batch_sizes: Sequence[int], *, is_pinned: bool, max_model_len: int
    ) -> Generator[Trial, None, None]:
        """A trial for each of `batch_sizes`, as it is finished. Close it to end the process.

        Raises EngineError where the process fails.
        """
        task = StaticTask(
            model=self.model.name,
            revision=self.model.revision,
            tokenizer=self.model.tokenizer or self.model.name,
            dtype=self.dtype,
            device=self.device,
            cpus=list(self.cpus),
            sampling=_plain(workload.prompts[0].sampling.values),
            seed=self.seed,
            is_pinned=is_pinned,
            rows=[_row(prompt, max_model_len) for prompt in workload.prompts],
            batch_sizes=list(batch_sizes),
        )
        answers = self._answers(task)
        try:
            next(answers)
            for batch_size, answer in zip(batch_sizes, answers, strict=False):
                yield static_trial(batch_size, workload, answer)
        finally:
            answers.close()

    def _answers(self, task: StaticTask) -> Generator[dict[str, Any], None, None]:
        """Lines of the process, the first one when the model is loaded."""
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "batchgen.bench.static"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(self.environment),
                start_new_session=True,  # a Ctrl-C in the terminal is for the asking process
            )
            if process.stdin is None or process.stdout is None:
                raise RuntimeError("a process without pipes")
            try:
                _send(process.stdin, task)
                num_answers = 0
                for line in process.stdout:
                    num_answers += 1
                    yield json.loads(line)
                if num_answers <= len(task.batch_sizes):
                    raise EngineError(_failure(process.wait(), errors))
            finally:
                process.kill()
                process.wait()
                process.stdin.close()
                process.stdout.close()


def static_trial(batch_size: int, workload: Workload, answer: Mapping[str, Any]) -> Trial:
    """The record of one pass over all rows.

    A row is in use until its own last token, taking all steps of a call to be of one length; its
    caller has it when the call ends. Padding counts for nothing.
    """
    num_each = workload.prompts[0].sampling.n
    occupancy = Occupancy(min(batch_size, len(workload.prompts)) * num_each)
    rows: list[Finished] = []
    for index, call in enumerate(answer["calls"]):
        prompts = workload.prompts[index * batch_size : (index + 1) * batch_size]
        occupancy.add_call(_spans(call))
        rows += _finished(prompts, call, num_each)
    wall_s = answer["wall_s"]
    num_output_tokens = sum(row.num_output_tokens for row in rows)
    ttft = percentiles([row.ttft_s for row in rows if row.ttft_s is not None])
    latency = percentiles([row.latency_s for row in rows if row.latency_s is not None])
    tpot = percentiles(_token_times(answer["calls"]))
    return Trial(
        way="static",
        batch_size=batch_size,
        num_rows=len(rows),
        num_failed=0,
        wall_s=wall_s,
        num_prompt_tokens=workload.num_prompt_tokens,
        num_cached_tokens=0,
        num_output_tokens=num_output_tokens,
        rows_per_s=len(rows) / wall_s,
        prompt_tokens_per_s=workload.num_prompt_tokens / wall_s,
        output_tokens_per_s=num_output_tokens / wall_s,
        ttft_s_p50=ttft[0],
        ttft_s_p95=ttft[1],
        tpot_s_p50=tpot[0],
        tpot_s_p95=tpot[1],
        latency_s_p50=latency[0],
        latency_s_p95=latency[1],
        queue_s_p50=0.0,
        num_running_mean=occupancy.num_running_mean,
        drain_s=occupancy.drain_s,
        kv_cache_usage_max=None,
        num_preemptions=None,
        num_steps=sum(call["num_steps"] for call in answer["calls"]),
        rows=tuple(rows),
    )


def padding_share(workload: Workload, batch_size: int) -> float:
    """Share of the prompt positions of padded batches that hold no token."""
    lengths = [len(prompt.token_ids) for prompt in workload.prompts]
    batches = [lengths[start : start + batch_size] for start in range(0, len(lengths), batch_size)]
    return 1 - sum(lengths) / sum(len(batch) * max(batch) for batch in batches)


def _spans(call: Mapping[str, Any]) -> list[tuple[float, float]]:
    step_s = _step_s(call)
    return [(0.0, call["ttft_s"] + (number - 1) * step_s) for number in call["num_tokens"]]


def _step_s(call: Mapping[str, Any]) -> float:
    decode_s = float(call["wall_s"]) - float(call["ttft_s"])
    return decode_s / (call["num_steps"] - 1) if call["num_steps"] > 1 else 0.0


def _token_times(calls: Sequence[Mapping[str, Any]]) -> list[float]:
    return [_step_s(call) for call in calls if call["num_steps"] > 1 for _ in call["num_tokens"]]


def _finished(
    prompts: Sequence[Prompt], call: Mapping[str, Any], num_each: int
) -> Iterator[Finished]:
    for index, prompt in enumerate(prompts):
        place = slice(index * num_each, (index + 1) * num_each)
        samples = tuple(
            Sample(text, number, "length")
            for text, number in zip(call["texts"][place], call["num_tokens"][place], strict=True)
        )
        ttft_s, wall_s = call["ttft_s"], call["wall_s"]
        completion = Completion("", samples, len(prompt.token_ids), 0, 0.0, ttft_s, wall_s)
        yield Finished(prompt, completion, ttft_s, wall_s)


def _row(prompt: Prompt, max_model_len: int) -> tuple[list[int], int]:
    room = max_model_len - len(prompt.token_ids)
    return list(prompt.token_ids), min(prompt.sampling.max_tokens or room, room)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "n")
    return {name: values[name] for name in names if values.get(name) is not None}


def _send(stdin: Any, task: StaticTask) -> None:
    """One line; the pipe stays open, as its end is the end of the process."""
    try:
        stdin.write(json.dumps(asdict(task)).encode() + b"\n")
        stdin.flush()
    except BrokenPipeError:
        return  # it has died at its start, and its exit code and stderr say why


def _failure(exit_code: int, errors: BinaryIO) -> str:
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return f"exit code {exit_code}: {lines[-1]}" if lines else f"exit code {exit_code}"
