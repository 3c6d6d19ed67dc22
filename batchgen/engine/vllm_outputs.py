"""vLLM's outputs and counters in batchgen's records.

Nothing here imports vllm: these functions read attributes of objects that `engine/vllm.py` hands
over. Times come from the engine's own monotonic clock (`queued_ts`, `scheduled_ts`, ...); the
arrival time that vLLM also reports is wall clock, and the two must never be subtracted.
"""

from collections.abc import Callable
from typing import Any

from batchgen.records import Completion, EngineStats, RowError, Sample

SplitReasoning = Callable[[str], tuple[str | None, str]]
"""A completion's text to (reasoning, answer)."""


def completion_of(
    output: Any, request_id: str, split_reasoning: SplitReasoning | None
) -> Completion:
    """A finished vLLM request; `finish_reason` error of any sample makes it an engine_error."""
    metrics = output.metrics
    samples = tuple(sample_of(sample, split_reasoning) for sample in output.outputs)
    failed = any(sample.finish_reason == "error" for sample in samples)
    return Completion(
        request_id,
        () if failed else samples,
        len(output.prompt_token_ids),
        output.num_cached_tokens,
        *times_of(metrics),
        error=_failed_in_engine() if failed else None,
    )


def sample_of(sample: Any, split_reasoning: SplitReasoning | None) -> Sample:
    """One of a request's completions."""
    reasoning, text = split_reasoning(sample.text) if split_reasoning else (None, sample.text)
    return Sample(
        text,
        len(sample.token_ids),
        sample.finish_reason,
        reasoning,
        None if sample.logprobs is None else [candidates_of(place) for place in sample.logprobs],
    )


def candidates_of(place: Any) -> list[dict[str, Any]]:
    """The candidates at one output position, the sampled token first."""
    return [
        {
            "token_id": token_id,
            "token": candidate.decoded_token,
            "logprob": candidate.logprob,
            "rank": candidate.rank,
        }
        for token_id, candidate in place.items()
    ]


def times_of(
    metrics: Any,
) -> tuple[float | None, float | None, float | None, float | None, float | None]:
    """queue_s, ttft_s, latency_s, scheduled_at, finished_at; None where vLLM does not tell."""
    if metrics is None or not metrics.scheduled_ts:
        return None, None, None, None, None
    queued, scheduled = metrics.queued_ts, metrics.scheduled_ts
    first, last = metrics.first_token_ts, metrics.last_token_ts
    return scheduled - queued, first - queued, last - queued, scheduled, last


def partial_completion(
    processor: Any, request_id: str, split_reasoning: SplitReasoning | None, *, is_final: bool
) -> Completion | None:
    """What a request has produced by now, read from vLLM's output processor; None: nothing.

    The front end holds the text of unfinished requests also where the engine has a process of its
    own. With `n` above 1 the samples that are finished already wait in their parent request.
    `is_final`: the request ends with this, so that nothing is held back or left out.
    """
    states = [
        state
        for name in processor.external_req_ids.get(request_id, ())
        if (state := processor.request_states.get(name)) is not None
    ]
    if not states or states[0].detokenizer is None:
        return None
    split_reasoning = split_reasoning if is_final else None
    samples = {
        state.request_index: _partial_sample(state, split_reasoning, is_final=is_final)
        for state in states
    }
    parent = states[0].parent_req
    for output in parent.output_aggregator if parent is not None else ():
        if output is not None:
            samples[output.index] = sample_of(output, split_reasoning)
    if not any(sample.num_tokens for sample in samples.values()):
        return None
    first = states[0]
    failed = any(sample.finish_reason == "error" for sample in samples.values())
    return Completion(
        request_id,
        () if failed else tuple(samples[index] for index in sorted(samples)),
        first.prompt_len,
        first.num_cached_tokens,
        *times_of(first.stats),
        error=_failed_in_engine() if failed else None,
    )


def _partial_sample(
    state: Any, split_reasoning: SplitReasoning | None, *, is_final: bool
) -> Sample:
    detokenizer = state.detokenizer
    text = detokenizer.get_next_output_text(finished=is_final, delta=False)
    num_tokens = detokenizer.num_output_tokens()
    if not is_final:
        return Sample(text, num_tokens, "abort")
    reasoning, text = split_reasoning(text) if split_reasoning else (None, text)
    places = state.logprobs_processor.logprobs
    logprobs = None if places is None else [candidates_of(place) for place in places]
    return Sample(text, num_tokens, "abort", reasoning, logprobs)


def _failed_in_engine() -> RowError:
    return RowError(
        "engine_error",
        "vLLM failed this request alone (finish_reason error); a grammar that it cannot"
        " compile does this",
    )


class StepCounters:
    """Takes the place of vLLM's stat loggers: keeps the last step's gauges, and sums.

    vLLM calls `record` after each step that produced something. Its own loggers feed Prometheus
    metrics, which cost more than anything else in the front end of a step, and nobody reads them
    here.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self._num_running = 0
        self._num_waiting = 0
        self._kv_cache_usage = 0.0
        self._num_preemptions = 0
        self._num_prompt_tokens = 0
        self._num_output_tokens = 0
        self._num_cached_tokens = 0

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """One step of the engine."""
        self.num_steps += 1
        if scheduler_stats is not None:
            # vLLM has left out already what the step finished.
            finished = iteration_stats.finished_requests if iteration_stats is not None else ()
            self._num_running = scheduler_stats.num_running_reqs + len(finished)
            self._num_waiting = (
                scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            )
            self._kv_cache_usage = scheduler_stats.kv_cache_usage
        if iteration_stats is not None:
            self._num_preemptions += iteration_stats.num_preempted_reqs
            self._num_prompt_tokens += iteration_stats.num_prompt_tokens
            self._num_output_tokens += iteration_stats.num_generation_tokens
            self._num_cached_tokens += iteration_stats.prompt_token_stats.cached_tokens

    def log(self) -> None:
        """Part of vLLM's interface; there is nothing to log."""

    def log_engine_initialized(self) -> None:
        """Part of vLLM's interface; there is nothing to log."""

    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
        """Part of vLLM's interface; this engine never sleeps."""

    def record_admission_rejection(self, reason: str) -> None:
        """Part of vLLM's interface; refusals are completions with an error."""

    def stats(self, *, is_idle: bool) -> EngineStats:
        """The engine as of its last step; gauges are zero while nothing is unfinished."""
        return EngineStats(
            num_running=0 if is_idle else self._num_running,
            num_waiting=0 if is_idle else self._num_waiting,
            kv_cache_usage=0.0 if is_idle else self._kv_cache_usage,
            num_preemptions=self._num_preemptions,
            num_prompt_tokens=self._num_prompt_tokens,
            num_output_tokens=self._num_output_tokens,
            num_cached_tokens=self._num_cached_tokens,
        )
