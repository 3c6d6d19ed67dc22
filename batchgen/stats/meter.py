"""Collects, row by row, what one open batch needs for its `BatchRecord`."""

from collections.abc import Sequence
from datetime import UTC, datetime

from batchgen.records import Completion, EngineStats, FinishedRow
from batchgen.stats.batch import BatchRecord
from batchgen.stats.occupancy import Occupancy
from batchgen.stats.steps import StepTotals


class StageSeconds:
    """Running totals of the stages beside the engine; a batch reports its share of each."""

    __slots__ = ("read_s", "render_s", "write_s")

    def __init__(self, read_s: float = 0.0, render_s: float = 0.0, write_s: float = 0.0) -> None:
        self.read_s = read_s
        self.render_s = render_s
        self.write_s = write_s


class BatchMeter:
    """One open batch. Times are seconds of the run's clock."""

    def __init__(
        self,
        *,
        run_id: str,
        batch_id: int,
        feed: str,
        slots: int,
        now: float,
        stats: EngineStats,
        stages: StageSeconds,
        steps: StepTotals | None = None,
        stops_early: bool = False,
    ) -> None:
        self.run_id = run_id
        self.batch_id = batch_id
        self.feed = feed
        self.occupancy = Occupancy(slots)
        self.num_rows = 0
        self._num_failed = 0
        self._num_prompt_tokens = 0
        self._num_output_tokens = 0
        self._num_cached_tokens: int | None = None
        self._num_stopped_early = 0 if stops_early else None
        self._num_saved_tokens_max = 0 if stops_early else None
        self._ttft: list[float] = []
        self._tpot: list[float] = []
        self._latency: list[float] = []
        self._queue: list[float] = []
        self._opened = now
        self._started_at = datetime.now(UTC).isoformat()
        self._stats = stats
        self._stages = stages
        self._steps = steps
        self._host_s = 0.0
        self._kv_cache_usage_max = stats.kv_cache_usage

    def row(self, row: FinishedRow, completion: Completion | None = None) -> None:
        """Count a finished row; `completion` where the engine worked for this very row."""
        self.num_rows += 1
        self._num_failed += row.error_type is not None
        if completion is None or row.error_type is not None:
            return
        self._num_prompt_tokens += row.num_prompt_tokens or 0
        self._num_output_tokens += row.num_output_tokens or 0
        if row.num_cached_tokens is not None:
            self._num_cached_tokens = (self._num_cached_tokens or 0) + row.num_cached_tokens
        self._times(row, completion)

    def _times(self, row: FinishedRow, completion: Completion) -> None:
        if completion.queue_s is not None:
            self._queue.append(completion.queue_s)
        if row.latency_s is None or row.ttft_s is None:
            return
        self._latency.append(row.latency_s)
        self._ttft.append(row.ttft_s)
        tpot_s = token_time(completion)
        if tpot_s is not None:
            self._tpot.append(tpot_s)

    def stopped_early(self, num_saved_tokens_max: int) -> None:
        """The row that is counted next was stopped early, and saved so many tokens at most."""
        self._num_stopped_early = (self._num_stopped_early or 0) + 1
        self._num_saved_tokens_max = (self._num_saved_tokens_max or 0) + num_saved_tokens_max

    def passed(
        self,
        seconds: float,
        num_running: int,
        num_waiting: int,
        *,
        is_tail: bool,
        between_steps: bool,
    ) -> None:
        """Time has passed with so many rows in the engine, in a step of it or between two."""
        self.occupancy.add(seconds, num_running, num_waiting, is_tail=is_tail)
        if between_steps and num_running:
            self._host_s += seconds

    def look(self, stats: EngineStats) -> None:
        """Note a look at the running engine (peak of the KV cache)."""
        if stats.kv_cache_usage is not None:
            self._kv_cache_usage_max = max(self._kv_cache_usage_max or 0.0, stats.kv_cache_usage)

    def close(
        self,
        *,
        now: float,
        stats: EngineStats,
        stages: StageSeconds,
        rss_bytes: int | None,
        closed_by: str,
        steps: StepTotals | None = None,
        prefill_token_s: float | None = None,
        sees_steps: bool = False,
    ) -> BatchRecord:
        """The record of this batch, its wall time ending `now`.

        `prefill_token_s` is the price of a prompt token as far as the steps tell it by now;
        `sees_steps`: time between steps was noted, and the engine stood still in it.
        """
        self.look(stats)
        num_steps, prefill_s = self._work(steps, prefill_token_s)
        is_observed = self.occupancy.observed_s > 0
        wall_s = now - self._opened
        produced_out = _delta(stats.num_output_tokens, self._stats.num_output_tokens)
        produced_in = _delta(stats.num_prompt_tokens, self._stats.num_prompt_tokens)
        output_tokens = self._num_output_tokens if produced_out is None else produced_out
        prompt_tokens = self._num_prompt_tokens if produced_in is None else produced_in
        ttft, tpot = percentiles(self._ttft), percentiles(self._tpot)
        latency = percentiles(self._latency)
        return BatchRecord(
            run_id=self.run_id,
            batch_id=self.batch_id,
            feed=self.feed,
            replica=0,
            started_at=self._started_at,
            wall_s=wall_s,
            num_rows=self.num_rows,
            num_failed=self._num_failed,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_tokens=self._num_cached_tokens,
            num_output_tokens=self._num_output_tokens,
            rows_per_s=_rate(self.num_rows, wall_s),
            output_tokens_per_s=_rate(output_tokens, wall_s),
            total_tokens_per_s=_rate(output_tokens + prompt_tokens, wall_s),
            ttft_s_p50=ttft[0],
            ttft_s_p95=ttft[1],
            tpot_s_p50=tpot[0],
            tpot_s_p95=tpot[1],
            latency_s_p50=latency[0],
            latency_s_p95=latency[1],
            queue_s_p50=percentiles(self._queue)[0],
            num_running_mean=self.occupancy.num_running_mean,
            drain_s=self.occupancy.drain_s if is_observed else None,
            kv_cache_usage_max=self._kv_cache_usage_max,
            num_preemptions=_delta(stats.num_preemptions, self._stats.num_preemptions),
            read_s=stages.read_s - self._stages.read_s,
            render_s=stages.render_s - self._stages.render_s,
            write_s=stages.write_s - self._stages.write_s,
            rss_bytes=rss_bytes,
            closed_by=closed_by,
            num_stopped_early=self._num_stopped_early,
            num_saved_tokens_max=self._num_saved_tokens_max,
            num_steps=num_steps,
            tail_s=self.occupancy.tail_s if is_observed else None,
            blocked_s=self.occupancy.blocked_s if is_observed else None,
            host_s=self._host_s if is_observed and sees_steps else None,
            prefill_s=prefill_s,
        )

    def _work(
        self, steps: StepTotals | None, prefill_token_s: float | None
    ) -> tuple[int | None, float | None]:
        """Steps of the engine in this batch, and seconds of them that went into prefill."""
        if steps is None or self._steps is None:
            return None, None
        num_steps = steps.num_steps - self._steps.num_steps
        if prefill_token_s is None:
            return num_steps, None
        num_tokens = steps.num_prefill_tokens - self._steps.num_prefill_tokens
        return num_steps, min(num_tokens * prefill_token_s, self.occupancy.observed_s)


def token_time(completion: Completion) -> float | None:
    """Seconds of each output token after the first, on average; None for a single token."""
    samples = completion.samples
    longest = samples[0] if len(samples) == 1 else max(samples, key=lambda s: s.num_tokens)
    steps = longest.num_tokens - 1
    if steps <= 0 or completion.latency_s is None or completion.ttft_s is None:
        return None
    return (completion.latency_s - completion.ttft_s) / steps


def percentiles(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Median and 95th percentile, linearly interpolated; None without values.

    >>> percentiles([3.0, 1.0, 2.0])
    (2.0, 2.9)
    """
    if not values:
        return None, None
    ordered = sorted(values)
    return _between(ordered, 0.5), _between(ordered, 0.95)


def _between(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _rate(amount: int, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None


def _delta(now: int | None, before: int | None) -> int | None:
    """Growth of an engine counter; None where the engine restarted or does not tell."""
    if now is None or before is None or now < before:
        return None
    return now - before
