"""vLLM as an engine: the only file that imports it, and where its errors are translated.

Requests go in as token ids through `add_request`, and come out of `step` when they are
finished (FINAL_ONLY: an output per step and sequence would cost more than the rest of the front
end). What vLLM refuses concerns one request, and becomes a Completion with an error; so that
nothing worse than a refusal can happen, sampling values are type-checked before vLLM sees them (a
text in place of a number stops its engine process for ever). What goes wrong in a step concerns
everything in flight, and becomes EngineDied.

vLLM's engine runs in a process of its own (the default on GPUs) or in this one (the default here
on CPUs). A killed engine process does not wake the caller that waits for it: a watchdog does.
"""

import contextlib
import copy
import gc
import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any

from batchgen.config.models import ModelConfig
from batchgen.engine.vllm_failures import first_sentence, start_failure
from batchgen.engine.vllm_outputs import (
    SplitReasoning,
    StepCounters,
    completion_of,
    partial_completion,
)
from batchgen.engine.vllm_plugin import OWNER, owner_mark
from batchgen.engine.vllm_process import (
    end_processes,
    engine_processes,
    stdout_to_stderr,
    take_in_logging,
)
from batchgen.engine.vllm_settings import (
    MULTIPROCESSING,
    ChosenSettings,
    settings_for,
)
from batchgen.errors import EngineDied, EngineError, EngineNotInstalled
from batchgen.protocols import Clock
from batchgen.records import Completion, EngineInfo, EngineStats, Request, RowError, Sampling

_WATCH_S = 0.2
_SHUTDOWN_S = 5.0
_CACHED_SAMPLINGS = 4096


class VllmEngine:
    """The engine protocol over `vllm.LLM`. Starting takes from seconds to minutes.

    Raises EngineNotInstalled, or EngineError with a remedy where vLLM does not start.
    """

    def __init__(self, model: ModelConfig, *, clock: Clock) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise EngineNotInstalled(
                "model.engine 'vllm' needs the package vllm: `pip install 'batchgen[vllm]'` on a"
                " GPU machine; for the CPU build see README, Installation"
            )
        self.clock = clock
        self._died: EngineDied | None = None
        self._unfinished: set[str] = set()
        self._samplings: dict[bytes, Any] = {}
        self._counters = StepCounters()
        settings = settings_for(model, os.environ)
        self._llm = _start(model, settings)
        self._engine = self._llm.llm_engine
        if self._engine.logger_manager is not None:
            self._engine.logger_manager.stat_loggers[:] = [self._counters]
        self._children = engine_processes()
        self._defaults: dict[str, Any] = {}
        self._split_reasoning = self._reasoning_splitter(model.reasoning_parser)
        self.info = _info(self._llm, settings)
        self._stop_watch = self._watch()

    @property
    def num_unfinished(self) -> int:
        """Requests added and neither handed over nor aborted."""
        return len(self._unfinished)

    def add(self, request: Request) -> Completion | None:
        """Queue a request; a Completion with an error where vLLM does not take it."""
        from vllm.inputs.engine import tokens_input

        self._check_alive()
        error = self._refusal(request)
        if error is None:
            prompt = tokens_input(list(request.token_ids))
            try:
                self._engine.add_request(request.id, prompt, self._params(request))
                self._unfinished.add(request.id)
                return None
            except _refusals() as exc:
                self._engine.abort_request([request.id])
                error = _refused(exc, request.sampling)
            except _deaths() as exc:
                raise self._die(exc) from exc
        return Completion(request.id, num_prompt_tokens=len(request.token_ids), error=error)

    def step(self) -> list[Completion]:
        """One step of vLLM, and the requests that it finished."""
        self._check_alive()
        if not self._unfinished:
            return []
        try:
            outputs = self._engine.step()
        except Exception as exc:  # whatever it was, the state of the engine is unknown now
            raise self._die(exc) from exc
        completions = [
            completion_of(output, output.request_id, self._split_reasoning)
            for output in outputs
            if output.finished
        ]
        self._unfinished.difference_update([c.request_id for c in completions])
        return completions

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One call of `LLM.generate`; requests that it would refuse are sorted out before.

        vLLM raises for the whole call when it dislikes a single request, before anything runs.
        Then the offenders are found one by one, and the call is made with the others.
        """
        self._check_alive()
        completions, accepted = [], []
        for request in requests:
            error = self._refusal(request)
            if error is None:
                accepted.append(request)
            else:
                completions.append(
                    Completion(request.id, num_prompt_tokens=len(request.token_ids), error=error)
                )
        try:
            return completions + self._generate(accepted)
        except _refusals() as exc:
            refused = self._refused_ones(accepted)
            if not refused:
                raise self._die(exc) from exc
        names = {completion.request_id for completion in refused}
        rest = [request for request in accepted if request.id not in names]
        return completions + refused + self._generate(rest)

    def abort(self, request_ids: Sequence[str]) -> list[Completion]:
        """Take requests back, with the text that they have so far."""
        self._check_alive()
        names = [name for name in request_ids if name in self._unfinished]
        processor = self._engine.output_processor
        partial = [
            partial_completion(processor, name, self._split_reasoning, is_final=True)
            for name in names
        ]
        try:
            self._engine.abort_request(names)
        except _deaths() as exc:
            raise self._die(exc) from exc
        self._unfinished.difference_update(names)
        return [completion for completion in partial if completion is not None]

    def reset_prefix_cache(self) -> None:
        """Forget the prompts of finished requests.

        Raises EngineError where vLLM does not do so (it has unfinished requests).
        """
        self._check_alive()
        try:
            was_reset = self._llm.reset_prefix_cache()
        except _deaths() as exc:
            raise self._die(exc) from exc
        if not was_reset:
            raise EngineError("vLLM did not reset its prefix cache: it has unfinished requests")

    def progress(self, request_id: str) -> Completion | None:
        """The text that an unfinished request has so far."""
        if request_id not in self._unfinished:
            return None
        processor = self._engine.output_processor
        return partial_completion(processor, request_id, None, is_final=False)

    def stats(self) -> EngineStats:
        """The engine as of its last step."""
        return self._counters.stats(is_idle=not self._unfinished)

    @property
    def num_steps(self) -> int:
        """Steps of the engine that produced something."""
        return self._counters.num_steps

    def interrupt(self, reason: str) -> None:
        """From any thread: give the engine up.

        A caller that waits for an engine process gets EngineDied at once; a step that runs in
        this process cannot be cut short, and the next call raises.
        """
        self._died = EngineDied(f"vLLM was given up: {reason}")
        self._wake_caller()

    def close(self) -> None:
        """End the engine, its processes among them, and free its memory."""
        if self._llm is None:
            return
        self._stop_watch()
        if self._died is None:
            self._died = EngineDied("vLLM was closed")
        with contextlib.suppress(Exception), stdout_to_stderr():
            self._engine.engine_core.shutdown(_SHUTDOWN_S)
        self._llm = self._engine = None
        self._samplings.clear()
        end_processes(self._children)
        _free_memory()

    def _check_alive(self) -> None:
        if self._died is not None:
            raise EngineDied(self._died.problems)

    def _die(self, cause: BaseException) -> EngineDied:
        if self._died is None:
            words = first_sentence(str(cause) or type(cause).__name__)
            self._died = EngineDied(f"vLLM died: {type(cause).__name__}: {words}")
        self._unfinished.clear()
        return EngineDied(self._died.problems)

    def _refusal(self, request: Request) -> RowError | None:
        num_tokens = len(request.token_ids)
        limit = self.info.max_model_len
        if num_tokens == 0:
            return RowError("empty_prompt", "the prompt has no tokens", 0)
        if num_tokens >= limit:
            return RowError(
                "prompt_too_long",
                f"{num_tokens} prompt tokens; the model takes {limit - 1} at most"
                f" (max_model_len {limit}, and one for the output)",
                num_tokens,
            )
        params = self._template(request.sampling)
        return params if isinstance(params, RowError) else None

    def _template(self, sampling: Sampling) -> Any:
        """SamplingParams shared by all requests with these values, or why there are none."""
        template = self._samplings.get(sampling.key)
        if template is None:
            if len(self._samplings) >= _CACHED_SAMPLINGS:
                self._samplings.clear()
            template = _sampling_params(sampling, self._defaults)
            self._samplings[sampling.key] = template
        return template

    def _params(self, request: Request) -> Any:
        """The request's own copy, shallow: vLLM only replaces fields of it."""
        params = copy.copy(self._template(request.sampling))
        params.skip_clone = True
        params.seed = request.seed
        return params

    def _generate(self, requests: Sequence[Request]) -> list[Completion]:
        if not requests:
            return []
        first = self._llm.request_counter.counter
        names = {str(first + index): request.id for index, request in enumerate(requests)}
        prompts = [{"prompt_token_ids": list(request.token_ids)} for request in requests]
        params = [self._params(request) for request in requests]
        self._unfinished.update(names)
        try:
            outputs = self._llm.generate(prompts, params, use_tqdm=False)
        except _refusals():
            raise
        except Exception as exc:  # whatever it was, the state of the engine is unknown now
            raise self._die(exc) from exc
        finally:
            self._unfinished.difference_update(names)
        return [
            completion_of(
                output, names.get(output.request_id, output.request_id), self._split_reasoning
            )
            for output in outputs
        ]

    def _refused_ones(self, requests: Sequence[Request]) -> list[Completion]:
        """Of the requests of a call that vLLM refused, those that it refuses alone."""
        from vllm.inputs.engine import tokens_input

        refused = []
        tasks = self._engine.get_supported_tasks()
        for request in requests:
            prompt = tokens_input(list(request.token_ids))
            try:
                self._engine.input_processor.process_inputs(
                    request.id, prompt, self._params(request), supported_tasks=tasks
                )
            except _refusals() as exc:
                error = _refused(exc, request.sampling)
                num_tokens = len(request.token_ids)
                refused.append(Completion(request.id, num_prompt_tokens=num_tokens, error=error))
        return refused

    def _reasoning_splitter(self, name: str | None) -> SplitReasoning | None:
        if name is None:
            return None
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.reasoning import ReasoningParserManager

        try:
            parser = ReasoningParserManager.get_reasoning_parser(name)(self._llm.get_tokenizer())
        except (KeyError, RuntimeError, ValueError) as exc:
            self.close()
            raise EngineError(f"model.reasoning_parser: {first_sentence(str(exc))}") from exc
        asked = ChatCompletionRequest(messages=[{"role": "user", "content": ""}])
        adjusted = parser.adjust_request(asked)
        if not adjusted.skip_special_tokens:
            self._defaults["skip_special_tokens"] = False

        def split(text: str) -> tuple[str | None, str]:
            reasoning, answer = parser.extract_reasoning(text, adjusted)
            return reasoning, answer or ""

        return split

    def _watch(self) -> Any:
        """Start the watchdog over an engine process; what stops it."""
        resources = getattr(self._engine.engine_core, "resources", None)
        stopped = threading.Event()
        if resources is None:
            return stopped.set

        def watch() -> None:
            while not stopped.wait(_WATCH_S):
                if resources.engine_dead:
                    self._wake_caller()
                    return

        threading.Thread(target=watch, name="vllm-watchdog", daemon=True).start()
        return stopped.set

    def _wake_caller(self) -> None:
        """Make a `step` that waits for an engine process raise."""
        from vllm.v1.engine.exceptions import EngineDeadError

        engine = self._engine
        queue = getattr(engine.engine_core, "outputs_queue", None) if engine is not None else None
        if queue is not None:
            queue.put(EngineDeadError())


def _start(model: ModelConfig, settings: ChosenSettings) -> Any:
    """Import vLLM and load the model; what it prints goes to stderr, its warnings to the log."""
    os.environ.update(settings.environment)
    os.environ[OWNER] = owner_mark()
    preload = os.environ.get("LD_PRELOAD")
    try:
        with stdout_to_stderr(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if os.environ.get("VLLM_CONFIGURE_LOGGING") == "0":
                take_in_logging()
            from vllm import LLM

            return LLM(model=model.name, **settings.arguments)
    except (Exception, SystemExit) as exc:  # vLLM raises nearly anything out of a start
        _free_memory()
        raise EngineError(start_failure(model.name, exc)) from exc
    finally:
        # vLLM preloads libraries for its own processes; others that start later do without.
        if preload is None:
            os.environ.pop("LD_PRELOAD", None)
        else:
            os.environ["LD_PRELOAD"] = preload


def _info(llm: Any, settings: ChosenSettings) -> EngineInfo:
    import vllm

    config = llm.llm_engine.vllm_config
    cache, scheduler = config.cache_config, config.scheduler_config
    num_blocks = cache.num_gpu_blocks
    return EngineInfo(
        name="vllm",
        version=vllm.__version__,
        max_model_len=config.model_config.max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        kv_block_tokens=cache.block_size,
        kv_cache_tokens=num_blocks * cache.block_size if num_blocks else None,
        settings={
            "chosen": tuple(settings.notes),
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "prefix_caching": bool(cache.enable_prefix_caching),
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
            "own_process": os.environ.get(MULTIPROCESSING, "1") != "0",
        },
    )


def _sampling_params(sampling: Sampling, defaults: dict[str, Any]) -> Any:
    """SamplingParams of type-checked values, or a RowError."""
    import msgspec
    from vllm.exceptions import VLLMError
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    values = {**defaults, **sampling.values}
    schema = values.pop("json_schema", None)
    if schema is not None:
        values["structured_outputs"] = {"json": schema}
    unknown = sorted(set(values) - set(SamplingParams.__struct_fields__))
    if unknown:
        return RowError("bad_sampling", f"vLLM has no sampling value {unknown[0]!r}")
    try:
        params = msgspec.convert(values, SamplingParams)
    except (msgspec.ValidationError, VLLMError, ValueError, TypeError) as exc:
        return _refused(exc, sampling)
    params.output_kind = RequestOutputKind.FINAL_ONLY
    return params


def _refused(error: BaseException, sampling: Sampling) -> RowError:
    """What vLLM's refusal of one request means for its row."""
    words = first_sentence(str(error))
    if words.startswith("Token id"):
        return RowError("engine_error", f"vLLM refused the prompt: {words}")
    if sampling.values.get("json_schema") is not None:
        return RowError("bad_schema", f"vLLM cannot compile the JSON schema: {words}")
    return RowError("bad_sampling", f"vLLM refused the sampling values: {words}")


def _refusals() -> tuple[type[Exception], ...]:
    """What vLLM raises before it takes a request: about that request alone."""
    from vllm.exceptions import VLLMClientError

    return VLLMClientError, ValueError, TypeError, OverflowError


def _deaths() -> tuple[type[Exception], ...]:
    """What vLLM raises when it is gone."""
    from vllm.exceptions import VLLMServerError

    return VLLMServerError, RuntimeError, OSError


def _free_memory() -> None:
    """Take down vLLM's process-wide state, so that another engine can start in this process."""
    if "vllm" not in sys.modules:
        return
    from vllm.distributed import cleanup_dist_env_and_memory

    with contextlib.suppress(Exception):
        cleanup_dist_env_and_memory()
    gc.collect()
