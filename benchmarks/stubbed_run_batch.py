"""vLLM's `run-batch` without an engine: what it costs a row by itself.

`vllm.entrypoints.launchers.run_batch.main` asks one context manager, `build_async_engine_client`,
for its engine. Here that is replaced by one whose client answers each request at once with a
ready text; not a line of vLLM is changed, and everything else is the real thing: the file is read
and checked, the chat template applied, the prompt tokenized, the response built, all responses are
gathered and written. Real requests leave much more behind in the process while they wait for the
engine (a queue, a detokenizer, statistics each), so time and memory are the least that can be.

`bare` goes one step further and leaves out the serving layer as well, chat template and
tokenizer with it: the registry of endpoints then holds one function that returns a finished
response. What is left is reading, checking, gathering and writing.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq

NUM_TOKENS = 8
"""Of each answer, as the simulated engine of batchgen says of its own."""


class StubClient:
    """As much of vLLM's `EngineClient` as a chat completion touches, over a real configuration."""

    errored = False
    is_running = True
    is_stopped = False

    def __init__(self, vllm_config: Any) -> None:
        from vllm.renderers import renderer_from_config
        from vllm.v1.engine.input_processor import InputProcessor

        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self.renderer = renderer_from_config(vllm_config)
        self.input_processor = InputProcessor(vllm_config, self.renderer)

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """Text generation."""
        return ("generate",)

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Everything is let in."""

    async def is_tracing_enabled(self) -> bool:
        """No traces."""
        return False

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **_: Any
    ) -> AsyncIterator[Any]:
        """One output, finished."""
        from vllm.outputs import CompletionOutput, RequestOutput

        completion = CompletionOutput(
            index=0,
            text=f"Reply to: {request_id}",
            token_ids=list(range(NUM_TOKENS)),
            cumulative_logprob=None,
            logprobs=None,
            finish_reason="stop",
        )
        yield RequestOutput(
            request_id=request_id,
            prompt=None,
            prompt_token_ids=prompt["prompt_token_ids"],
            prompt_logprobs=None,
            outputs=[completion],
            finished=True,
            num_cached_tokens=0,
        )


def write_requests(shards: list[str], path: Path, model: str) -> str:
    """The rows of Parquet shards as lines in the OpenAI batch format; the path."""
    with path.open("w", encoding="utf-8") as file:
        for shard in shards:
            table = pq.read_table(shard, columns=["id", "text"])
            for id, text in zip(*(column.to_pylist() for column in table.columns), strict=True):
                request = {
                    "custom_id": str(id),
                    "method": "POST",
                    "url": "/v1/chat/completions",
                    "body": {
                        "model": model,
                        "messages": [{"role": "user", "content": text}],
                        "max_tokens": 16,
                        "temperature": 0.0,
                    },
                }
                file.write(json.dumps(request) + "\n")
    return str(path)


def run_stubbed(requests: str, out: str, model: str, *, bare: bool) -> float:
    """Run it on a file of requests; seconds from the first byte read to the last one written.

    Exits with a message where vLLM is not installed or a row has no answer.
    """
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_PLUGINS": ""}
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        from vllm.entrypoints.launchers import run_batch
        from vllm.entrypoints.launchers.api_server import entry
    except ImportError as exc:
        raise SystemExit(f"run-batch needs vllm: {exc}; make install, or pip install vllm") from exc
    arguments = {"-i": requests, "-o": out, "--model": model, "--max-model-len": "4096"}
    sys.argv = ["run_batch", *(word for pair in arguments.items() for word in pair)]
    began = [0.0]
    read_file = run_batch.read_file

    async def read_and_note(path: str) -> str:
        began[0] = time.perf_counter()
        return str(await read_file(path))

    run_batch.read_file = read_and_note
    entry.build_async_engine_client = _bare_client if bare else _client
    if bare:
        run_batch.build_endpoint_registry = _bare_registry
    asyncio.run(run_batch.main(run_batch.parse_args()))
    seconds = time.perf_counter() - began[0]
    _check_answers(requests, out)
    return seconds


@contextlib.asynccontextmanager
async def _client(args: Any, **_: Any) -> AsyncIterator[StubClient]:
    from vllm.engine.arg_utils import AsyncEngineArgs

    yield StubClient(AsyncEngineArgs.from_cli_args(args).create_engine_config())


@contextlib.asynccontextmanager
async def _bare_client(args: Any, **_: Any) -> AsyncIterator[SimpleNamespace]:
    yield SimpleNamespace()


async def _bare_registry(engine_client: Any, args: Any) -> dict[str, dict[str, Any]]:
    """An endpoint that answers without looking at the prompt."""
    from vllm.entrypoints.openai.chat_completion.protocol import (
        ChatCompletionResponse,
        ChatCompletionResponseChoice,
        ChatMessage,
    )
    from vllm.entrypoints.serve.engine.protocol import UsageInfo

    async def answer(request: Any) -> ChatCompletionResponse:
        message = ChatMessage(role="assistant", content=f"Reply to: {request.request_id}")
        usage = UsageInfo(prompt_tokens=1, completion_tokens=NUM_TOKENS, total_tokens=9)
        choice = ChatCompletionResponseChoice(index=0, message=message, finish_reason="stop")
        return ChatCompletionResponse(model=request.model, choices=[choice], usage=usage)

    endpoint = {
        "url_matcher": lambda url: url == "/v1/chat/completions",
        "handler_getter": lambda: answer,
        "wrapper_fn": None,
    }
    return {"completions": endpoint}


def _check_answers(requests: str, out: str) -> None:
    """A stub that fails fast would look fast."""
    with Path(requests).open("rb") as file:
        num_requests = sum(1 for _ in file)
    with Path(out).open("rb") as file:
        num_answers = sum(b"Reply to: " in line for line in file)
    if num_answers != num_requests:
        raise SystemExit(f"run-batch answered {num_answers} of {num_requests} rows; see {out}")
