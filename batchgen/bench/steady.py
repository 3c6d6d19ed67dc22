"""How fast an engine is while a fixed number of rows is in flight.

A trial begins and ends with an empty engine, and neither belongs to the answer: a corpus of a
million rows has one start and one end. What is measured is the middle. With n rows in flight, the
first n all begin at once; when n rows have finished, their places have been taken by others, one
by one, and prefill and decode mix as they do in a long run. It ends when the last row has entered:
from then on fewer and fewer are in flight. So of N rows that finish, the rate is measured from the
n-th to the (N-n)-th, and latencies are those of the rows between the first n and the last n.

That takes N of several times n. A point that is measured with too few rows looks slow, since its
tail is a large part of it, and the more so the larger n is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from batchgen.bench.trials import Trial, TrialSink, trial_of
from batchgen.bench.workload import Workload
from batchgen.config.stop_early import StopEarlyConfig
from batchgen.errors import DataError
from batchgen.protocols import Engine
from batchgen.records import Completion, Prompt, RowKey
from batchgen.schedule.early_stop import EarlyStop
from batchgen.schedule.feeds import InFlight, Stop, feed_continuous
from batchgen.schedule.ordering import LengthEstimate, RowQueue

ROWS_PER_PLACE: Final = 4
"""Rows of a trial for each one in flight: one to begin, two to measure, one to end."""
LEAST_ROWS: Final = 8


@dataclass(frozen=True, slots=True)
class Steady:
    """One trial with a fixed number of rows in flight. Times in seconds of the engine's clock."""

    num_running: int
    num_rows: int
    num_failed: int
    total_s: float
    """From the first row to the last one, start and end included."""
    output_tokens_per_s: float
    """Of the middle."""
    tokens_per_step: float | None
    """Tokens that a step of the middle computes, of prompts and of outputs."""
    cached_share: float | None
    """Share of all prompt tokens that came from the prefix cache, which was empty at the start."""
    middle: Trial
    """The rows between the first and the last ones; its `wall_s` is that of the middle."""
    lengths: Mapping[RowKey, int]
    """Output tokens of each row that did not fail; with n completions their mean."""

    @property
    def rows_per_s_in_all(self) -> float:
        """Rows per second of `total_s`: it depends on the order of the rows, too."""
        return self.num_rows / self.total_s


def rows_needed(num_running: int) -> int:
    """Rows of a trial with so many in flight.

    >>> [rows_needed(number) for number in (1, 2, 64)]
    [8, 8, 256]
    """
    return max(LEAST_ROWS, ROWS_PER_PLACE * num_running)


def measure_steady(
    engine: Engine,
    prompts: Sequence[Prompt],
    num_running: int,
    stop: Stop,
    rules: StopEarlyConfig | None = None,
) -> Steady:
    """Send all prompts through the engine, in this order, `num_running` of them in flight.

    `rules` are the job's `stop_early`. Raises DataError where every row fails, and where the
    engine's clock stands still.
    """
    if len(prompts) < 2 * num_running + 2:
        raise ValueError(f"{len(prompts)} rows are too few for {num_running} in flight")
    engine.reset_prefix_cache()
    sink = _SteadySink(engine, num_running, len(prompts))
    before, began = engine.stats(), engine.clock.now()
    feed_continuous(
        _queue(prompts),
        engine,
        sink,
        stop,
        InFlight(),
        window=num_running,
        early_stop=EarlyStop(rules) if rules is not None and rules.is_active else None,
    )
    total_s = engine.clock.now() - began
    start, end = sink.start, sink.end
    if start is None or end is None or end.at <= start.at:
        raise DataError("the engine's clock stands still, so there is nothing to measure")
    middle = trial_of(
        "continuous",
        num_running,
        Workload(tuple(prompts[num_running : len(prompts) - num_running]), 0, 0),
        sink,
        wall_s=end.at - start.at,
        before=before,
        num_steps=end.num_steps - start.num_steps,
    )
    rows = [row for row in sink.finished.values() if row.completion.error is None]
    return Steady(
        num_running=num_running,
        num_rows=len(prompts),
        num_failed=len(prompts) - len(rows),
        total_s=total_s,
        output_tokens_per_s=(end.num_output_tokens - start.num_output_tokens) / middle.wall_s,
        tokens_per_step=_tokens_per_step(start, end),
        cached_share=_cached_share(row.completion for row in rows),
        middle=middle,
        lengths={
            row.prompt.key: round(row.num_output_tokens / len(row.completion.samples))
            for row in rows
        },
    )


@dataclass(frozen=True, slots=True)
class _Mark:
    """The engine's counters at one moment."""

    at: float
    num_output_tokens: int
    num_steps: int
    num_computed_tokens: int | None
    """Prompt tokens that were not in the prefix cache."""


class _SteadySink(TrialSink):
    """Notes when the middle of a trial begins and ends."""

    def __init__(self, engine: Engine, num_running: int, num_rows: int) -> None:
        super().__init__(engine, num_running)
        self.start: _Mark | None = None
        self.end: _Mark | None = None
        self._first, self._last = num_running, num_rows - num_running
        self._num_finished_tokens = 0

    def complete(self, prompt: Prompt, completion: Completion) -> None:
        """Keep it, and look at the engine where the middle begins or ends."""
        super().complete(prompt, completion)
        self._num_finished_tokens += sum(sample.num_tokens for sample in completion.samples)
        if self.num_settled == self._first:
            self.start = self._mark()
        if self.num_settled == self._last:
            self.end = self._mark()

    def _mark(self) -> _Mark:
        stats = self.engine.stats()
        produced = stats.num_output_tokens
        computed = None
        if stats.num_prompt_tokens is not None and stats.num_cached_tokens is not None:
            computed = stats.num_prompt_tokens - stats.num_cached_tokens
        return _Mark(
            at=self.engine.clock.now(),
            # An engine that does not count tells only of rows that have finished.
            num_output_tokens=self._num_finished_tokens if produced is None else produced,
            num_steps=self.engine.num_steps,
            num_computed_tokens=computed,
        )


def _cached_share(completions: Iterable[Completion]) -> float | None:
    counts = [(c.num_cached_tokens, c.num_prompt_tokens) for c in completions]
    known = [(cached, total) for cached, total in counts if cached is not None and total]
    return sum(cached for cached, _ in known) / sum(t for _, t in known) if known else None


def _queue(prompts: Sequence[Prompt]) -> RowQueue:
    blocks = iter([list(prompts)])
    return RowQueue(
        lambda wait: next(blocks, None), order="input", look_ahead=1, estimate=LengthEstimate()
    )


def _tokens_per_step(start: _Mark, end: _Mark) -> float | None:
    num_steps = end.num_steps - start.num_steps
    if not num_steps or start.num_computed_tokens is None or end.num_computed_tokens is None:
        return None
    num_tokens = end.num_output_tokens - start.num_output_tokens
    return (num_tokens + end.num_computed_tokens - start.num_computed_tokens) / num_steps
