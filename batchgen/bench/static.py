"""Static batching with Hugging Face `generate`: a padded batch that waits for its longest row.

    python -m batchgen.bench.static      the process that `static_process.py` starts and talks to

All prompts of a batch are padded on the left to the longest one, and all rows decode until the
longest has finished; what a finished row decodes beyond its end is thrown away. It is the same
model with the same weights in the same number format. The process reads one task from stdin, a
line of JSON, and answers on stdout, a line for the start and one for each batch size. It ends when
its stdin is closed, so it never survives the process that asked.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO, TypeAlias

Row: TypeAlias = tuple[list[int], int]
"""Token ids of a prompt, and its output tokens."""


@dataclass(frozen=True, slots=True)
class StaticTask:
    """What is to be measured. Token ids go in, so that no tokenizer can make a difference."""

    model: str
    revision: str | None
    tokenizer: str
    dtype: str
    """torch's name: `float32`, `bfloat16`, `float16`."""
    device: str
    """`cpu` or `cuda`."""
    cpus: list[int]
    """Cores to run on; an engine may have bound the asking process to fewer."""
    sampling: dict[str, Any]
    """Values of the first row, which are those of all: Hugging Face takes one set for a call."""
    seed: int
    is_pinned: bool
    """Whether rows have exactly their `num_tokens`, or at most."""
    rows: list[Row]
    batch_sizes: list[int]
    """In the order in which they are measured, repeats included."""


@dataclass(frozen=True, slots=True)
class StaticCall:
    """One padded batch."""

    wall_s: float
    ttft_s: float
    num_steps: int
    num_tokens: list[int]
    """Of each row, up to its end."""
    texts: list[str]


def main() -> None:
    """Answer one task."""
    answers = _take_stdout()
    task = StaticTask(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    os.sched_setaffinity(0, task.cpus)  # before torch starts its threads
    began = time.perf_counter()
    model = PaddedModel(task)
    model.call(task.rows[:2], max_tokens=4)
    _answer(answers, {"load_s": time.perf_counter() - began})
    for batch_size in task.batch_sizes:
        began = time.perf_counter()
        calls = [
            model.call(task.rows[start : start + batch_size])
            for start in range(0, len(task.rows), batch_size)
        ]
        wall_s = time.perf_counter() - began
        _answer(answers, {"wall_s": wall_s, "calls": [_plain(call) for call in calls]})


class PaddedModel:
    """A causal language model of transformers, and its tokenizer for the texts."""

    def __init__(self, task: StaticTask) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        self._torch = torch
        self._task = task
        revision = task.revision if task.tokenizer == task.model else None
        self._tokenizer = AutoTokenizer.from_pretrained(task.tokenizer, revision=revision)
        model = AutoModelForCausalLM.from_pretrained(
            task.model, revision=task.revision, dtype=getattr(torch, task.dtype)
        )
        self._model = model.to(task.device).eval()
        eos = model.generation_config.eos_token_id
        ends = eos if isinstance(eos, list) else [eos]
        self._eos = [token for token in ends if token is not None]
        self._pad = self._eos[0] if self._eos else 0

    def call(self, rows: Sequence[Row], max_tokens: int | None = None) -> StaticCall:
        """Generate one batch; `max_tokens` shortens it, for a warm-up."""
        longest = max(number for _, number in rows)
        longest = min(longest, max_tokens or longest)
        input_ids, attention_mask = self._padded([token_ids for token_ids, _ in rows])
        self._torch.manual_seed(self._task.seed)
        began = time.perf_counter()
        first_token_at: list[float] = []

        def note_first_token(*_: Any, **__: Any) -> bool:
            if not first_token_at:
                self._wait_for_device()
                first_token_at.append(time.perf_counter())
            return False

        with self._torch.inference_mode():
            outputs = self._model.generate(
                input_ids=input_ids,
                attention_mask=attention_mask,
                max_new_tokens=longest,
                min_new_tokens=longest if self._task.is_pinned else None,
                pad_token_id=self._pad,
                stopping_criteria=[note_first_token],
                **sampling_arguments(self._task.sampling),
            )
        generated = outputs[:, input_ids.shape[1] :].tolist()
        limits = [number for _, number in rows for _ in range(self._num_each)]
        ended = [self._up_to_end(*pair) for pair in zip(generated, limits, strict=True)]
        texts = self._tokenizer.batch_decode(ended, skip_special_tokens=True)
        return StaticCall(
            wall_s=time.perf_counter() - began,
            ttft_s=first_token_at[0] - began,
            num_steps=len(generated[0]),
            num_tokens=[len(ids) for ids in ended],
            texts=texts,
        )

    @property
    def _num_each(self) -> int:
        return int(self._task.sampling.get("n") or 1)

    def _padded(self, prompts: Sequence[list[int]]) -> tuple[Any, Any]:
        """Token ids and attention mask, padded on the left: generation goes on at the right."""
        width = max(len(prompt) for prompt in prompts)
        ids = [[self._pad] * (width - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        tensor, device = self._torch.tensor, self._task.device
        return tensor(ids, device=device), tensor(mask, device=device)

    def _up_to_end(self, ids: list[int], num_tokens: int) -> list[int]:
        """What belongs to the row; the rest was decoded because others were not done."""
        if self._task.is_pinned:
            return ids[:num_tokens]
        end = next((i + 1 for i, token in enumerate(ids) if token in self._eos), len(ids))
        return ids[: min(end, num_tokens)]

    def _wait_for_device(self) -> None:
        if self._task.device != "cpu":
            self._torch.cuda.synchronize()


def sampling_arguments(values: dict[str, Any]) -> dict[str, Any]:
    """vLLM's sampling values in the words of Hugging Face; what these lack is left out.

    >>> sampling_arguments({"temperature": 0.0, "max_tokens": 9})
    {'do_sample': False, 'temperature': None, 'top_p': None, 'top_k': None}
    """
    penalty = values.get("repetition_penalty")
    common = {} if penalty is None else {"repetition_penalty": penalty}
    temperature = values.get("temperature", 1.0)
    if temperature == 0:
        return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None, **common}
    if values.get("min_p"):
        common["min_p"] = values["min_p"]
    return {
        "do_sample": True,
        "temperature": temperature,
        "top_p": values.get("top_p", 1.0),
        "top_k": max(0, values.get("top_k", 0)),
        "num_return_sequences": int(values.get("n") or 1),
        **common,
    }


def _plain(call: StaticCall) -> dict[str, Any]:
    return {name: getattr(call, name) for name in call.__dataclass_fields__}


def _take_stdout() -> TextIO:
    """Keep stdout for answers; what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _answer(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _end_with_stdin() -> None:
    while sys.stdin.readline():
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
