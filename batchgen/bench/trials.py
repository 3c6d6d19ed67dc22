"""One fair measurement: all rows of a workload through one feed, timed from outside.

A trial uses the feeds of a run, so what it measures is what a run does, less reading and writing.
It starts with an empty prefix cache and ends when the last row has finished. Rates are per second
of `wall_s`.

Latencies begin when a row comes into the engine's queue: at the start of its call in `generate`, at
its entry into the window in `continuous`, and at its arrival where arrivals are replayed
(`dynamic.py`). They end when the caller has the row: a call hands over all of its rows when the
last of them has finished. The time of the first token is the engine's own.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol

from batchgen.bench.workload import Workload
from batchgen.errors import DataError
from batchgen.protocols import Engine
from batchgen.records import Completion, EngineStats, Prompt, Refusal
from batchgen.schedule.feeds import (
    InFlight,
    Rows,
    feed_continuous,
    feed_generate,
    feed_sequential,
)
from batchgen.stats.meter import percentiles, token_time
from batchgen.stats.occupancy import Occupancy

STATS_PERIOD_S: Final = 0.05
"""Looks at the engine's gauges are at least so far apart: one costs some microseconds."""


class Arrivals(Rows, Protocol):
    """Rows that come in at moments of their own, as requests to a server do."""

    @property
    def waited_s(self) -> float:
        """Seconds spent waiting for rows so far, with nothing in the engine."""
        ...

    def arrived_at(self, prompt: Prompt) -> float:
        """When a row came in, on the engine's clock."""
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """One row of a trial, with its times as the caller sees them. None: the engine does not tell.

    The completion's own times are those inside the engine.
    """

    prompt: Prompt
    completion: Completion
    ttft_s: float | None = None
    latency_s: float | None = None

    @property
    def text(self) -> str | None:
        """The completion; None where the row failed."""
        return self.completion.samples[0].text if self.completion.samples else None

    @property
    def num_output_tokens(self) -> int:
        """Output tokens of all samples."""
        return sum(sample.num_tokens for sample in self.completion.samples)


@dataclass(frozen=True, slots=True)
class Trial:
    """What one measurement gave. Times in seconds; None: the engine does not tell."""

    way: str
    """`sequential`, `generate`, `continuous`, or another way that `compare` knows."""
    batch_size: int | None
    """Rows of a call in `generate`, most rows in flight in `continuous`."""
    num_rows: int
    num_failed: int
    wall_s: float
    num_prompt_tokens: int
    num_cached_tokens: int | None
    num_output_tokens: int
    rows_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    ttft_s_p50: float | None
    ttft_s_p95: float | None
    tpot_s_p50: float | None
    tpot_s_p95: float | None
    latency_s_p50: float | None
    latency_s_p95: float | None
    queue_s_p50: float | None
    num_running_mean: float | None
    drain_s: float | None
    kv_cache_usage_max: float | None
    num_preemptions: int | None
    num_steps: int
    """Steps of the engine that produced something."""
    rows: tuple[Finished, ...] = ()
    """In the order of the workload."""


def run_sequential(engine: Engine, workload: Workload) -> Trial:
    """One call of the engine's batch API for each row."""
    return measure("sequential", 1, engine, workload)


def run_generate(engine: Engine, workload: Workload, batch_size: int) -> Trial:
    """One call of the engine's batch API for each `batch_size` rows."""
    return measure("generate", batch_size, engine, workload)


def run_continuous(engine: Engine, workload: Workload, window: int) -> Trial:
    """At most `window` rows in flight; a row that finishes makes room for the next one."""
    return measure("continuous", window, engine, workload)


def measure(
    way: str, size: int, engine: Engine, workload: Workload, *, arrivals: Arrivals | None = None
) -> Trial:
    """All rows of the workload in this way, `size` of them a call or in flight.

    With `arrivals` the rows come from there, at their moments, instead of all at once.
    """
    engine.reset_prefix_cache()
    sink = TrialSink(engine, min(size, engine.info.max_num_seqs), arrivals)
    rows: Rows = arrivals or _Rows(workload.prompts)
    in_flight, stop = InFlight(), _Go()
    before, steps_before, began = engine.stats(), engine.num_steps, engine.clock.now()
    match way:
        case "sequential":
            feed_sequential(rows, engine, sink, stop, in_flight)
        case "generate" | "dynamic":
            feed_generate(rows, engine, sink, stop, in_flight, batch_size=size)
        case _:
            feed_continuous(rows, engine, sink, stop, in_flight, window=size)
    wall_s = engine.clock.now() - began
    num_steps = engine.num_steps - steps_before
    return trial_of(way, size, workload, sink, wall_s=wall_s, before=before, num_steps=num_steps)


def trial_of(
    way: str,
    size: int | None,
    workload: Workload,
    sink: "TrialSink",
    *,
    wall_s: float,
    before: EngineStats,
    num_steps: int,
) -> Trial:
    """The record of a measurement that `sink` has followed.

    Raises DataError where every row failed: there is nothing to time.
    """
    finished = [sink.finished[prompt.key] for prompt in workload.prompts]
    good = [row for row in finished if row.completion.error is None]
    if not good:
        error = finished[0].completion.error
        raise DataError(f"{way}: all {len(finished)} rows failed, the first with: {error}")
    completions = [row.completion for row in good]
    num_prompt_tokens = sum(len(row.prompt.token_ids) for row in good)
    num_output_tokens = sum(row.num_output_tokens for row in good)
    cached = [c.num_cached_tokens for c in completions if c.num_cached_tokens is not None]
    ttft = percentiles([row.ttft_s for row in good if row.ttft_s is not None])
    latency = percentiles([row.latency_s for row in good if row.latency_s is not None])
    tpot = percentiles([t for c in completions if (t := token_time(c)) is not None])
    after = sink.engine.stats()
    return Trial(
        way=way,
        batch_size=size,
        num_rows=len(finished),
        num_failed=len(finished) - len(good),
        wall_s=wall_s,
        num_prompt_tokens=num_prompt_tokens,
        num_cached_tokens=sum(cached) if cached else None,
        num_output_tokens=num_output_tokens,
        rows_per_s=len(finished) / wall_s,
        prompt_tokens_per_s=num_prompt_tokens / wall_s,
        output_tokens_per_s=num_output_tokens / wall_s,
        ttft_s_p50=ttft[0],
        ttft_s_p95=ttft[1],
        tpot_s_p50=tpot[0],
        tpot_s_p95=tpot[1],
        latency_s_p50=latency[0],
        latency_s_p95=latency[1],
        queue_s_p50=percentiles([c.queue_s for c in completions if c.queue_s is not None])[0],
        num_running_mean=sink.occupancy.num_running_mean,
        drain_s=sink.occupancy.drain_s if sink.occupancy.observed_s else None,
        kv_cache_usage_max=sink.kv_cache_usage_max,
        num_preemptions=_growth(before.num_preemptions, after.num_preemptions),
        num_steps=num_steps,
        rows=tuple(finished),
    )


class TrialSink:
    """Takes what a feed finishes, and watches the engine meanwhile."""

    def __init__(self, engine: Engine, slots: int, arrivals: Arrivals | None = None) -> None:
        self.engine = engine
        self.occupancy = Occupancy(slots)
        self.finished: dict[tuple[str, int], Finished] = {}
        self.kv_cache_usage_max: float | None = None
        self._arrivals = arrivals
        self._waited_s = 0.0
        self._call_ended_at: float | None = None
        self._looked_at = engine.clock.now()

    @property
    def num_settled(self) -> int:
        """Rows finished so far."""
        return len(self.finished)

    @property
    def num_unsaved(self) -> int:
        """Nothing is written, so nothing waits for a disk."""
        return 0

    def save(self) -> None:
        """Nothing is written."""

    def refuse(self, refusal: Refusal) -> None:
        """A workload holds sound rows alone."""
        raise RuntimeError(f"{refusal.shard}:{refusal.row}: a refused row in a workload")

    def admit(self, prompt: Prompt) -> bool:
        """Every row is worked for: a copy would make a way look fast."""
        return True

    def complete(self, prompt: Prompt, completion: Completion) -> None:
        """Keep it."""
        ttft_s, latency_s = self._times(prompt, completion)
        self.finished[prompt.key] = Finished(prompt, completion, ttft_s, latency_s)

    def _times(self, prompt: Prompt, completion: Completion) -> tuple[float | None, float | None]:
        """First token and whole row, as the caller sees them."""
        ttft_s, latency_s = completion.ttft_s, completion.latency_s
        held_s = 0.0
        if self._call_ended_at is not None and completion.finished_at is not None:
            held_s = self._call_ended_at - completion.finished_at
        if self._arrivals is None:
            return ttft_s, None if latency_s is None else latency_s + held_s
        seen_s = self.engine.clock.now() - self._arrivals.arrived_at(prompt)
        if ttft_s is not None and latency_s is not None:
            ttft_s += max(0.0, seen_s - latency_s - held_s)
        return ttft_s, seen_s

    def stale(self, completion: Completion) -> None:
        """Nobody waits for it."""

    def occupied(self, seconds: float, num_running: int, num_waiting: int) -> None:
        """The engine has worked `seconds` with so many rows decoding and waiting."""
        if self._arrivals is not None:
            waited_s = self._arrivals.waited_s
            seconds, self._waited_s = seconds - (waited_s - self._waited_s), waited_s
        self.occupancy.add(seconds, num_running, num_waiting)
        now = self.engine.clock.now()
        if now - self._looked_at >= STATS_PERIOD_S:
            self._looked_at = now
            usage = self.engine.stats().kv_cache_usage
            if usage is not None:
                self.kv_cache_usage_max = max(usage, self.kv_cache_usage_max or 0.0)

    def called(self, completions: list[Completion]) -> None:
        """One call has ended; the engine's time stamps tell how full it was."""
        spans = [
            (completion.scheduled_at, completion.finished_at)
            for completion in completions
            if completion.scheduled_at is not None and completion.finished_at is not None
        ]
        self._call_ended_at = max((end for _, end in spans), default=None)
        self.occupancy.add_call(spans)

    def end_batch(self) -> None:
        """A trial has no batches of its own."""


class _Rows:
    """Prompts in their order, as a feed asks for them."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._prompts = prompts
        self._next = 0

    @property
    def is_exhausted(self) -> bool:
        return self._next >= len(self._prompts)

    def next(self, urgency: int) -> Prompt | None:
        if self.is_exhausted:
            return None
        self._next += 1
        return self._prompts[self._next - 1]


class _Go:
    """Nothing stops a trial but Ctrl-C, which raises."""

    ends_feeding = False

    def check(self, num_in_flight: int = 0) -> None:
        pass

    def interruptible(self) -> AbstractContextManager[None]:
        return nullcontext()


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
