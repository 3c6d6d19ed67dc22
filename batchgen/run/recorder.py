"""Turns what happens to rows into output rows and batch records, and hands both to the store.

The recorder is the feeds' sink. It decides to which batch a row belongs: the one that is open when
the row's fate is known, whether the engine finished it, refused it, or it is a copy of an equal
prompt. Rows go to the store in small groups, with the batch record right behind its last rows.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
import psutil

from batchgen.protocols import Engine
from batchgen.records import Completion, EngineStats, FinishedRow, Prompt, Refusal, Sample
from batchgen.run.budget import ErrorBudget
from batchgen.run.stop import StopRun
from batchgen.schedule.dedupe import Admission, Dedupe, copy_row
from batchgen.schedule.early_stop import saved_tokens_max
from batchgen.schedule.ordering import LengthEstimate
from batchgen.stats.batch import BatchRecord
from batchgen.stats.meter import BatchMeter, StageSeconds
from batchgen.stats.steps import StepTotals, StepWatch
from batchgen.stats.totals import BatchTotals

GROUP_ROWS = 64
"""Rows handed to the store at once; the journal writes them as one frame per part."""
GROUP_S = 0.5
"""Seconds after which a smaller group goes as well."""


class Store(Protocol):
    """Where finished rows are kept."""

    def rows(self, rows: Sequence[FinishedRow]) -> None:
        """Take finished rows."""
        ...

    def batch(self, record: BatchRecord) -> None:
        """Take the record of a batch whose rows have been handed over."""
        ...

    @property
    def num_unsaved(self) -> int:
        """Rows taken that a kill would still lose."""
        ...

    def settle(self) -> None:
        """Return when no row taken can be lost by a kill."""
        ...

    def write_seconds(self) -> float:
        """Seconds spent writing so far."""
        ...


@dataclass(slots=True)
class Counts:
    """What this execution has done so far."""

    rows: int = 0
    failed: int = 0
    failed_by_type: Counter[str] = field(default_factory=Counter)
    generated: int = 0
    """Rows that the engine worked for and did not fail; tokens are those of these."""
    sequences: int = 0
    """Completions of these rows: more than one each with `n` above 1."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    stale: int = 0
    last_completion_at: float | None = None
    stopped_early: Counter[str] | None = None
    """Rows that the engine worked for and a rule stopped, by rule; None without rules."""
    saved_tokens_max: int | None = None
    samples: list[dict[str, Any]] = field(default_factory=list)


class Recorder:
    """The sink of one run."""

    def __init__(
        self,
        *,
        run_id: str,
        feed: str,
        batch_size: int,
        first_batch_id: int,
        engine: Engine,
        store: Store,
        budget: ErrorBudget,
        request_stop: Callable[[StopRun], None],
        requeue: Callable[[Sequence[Prompt]], None],
        dedupe: Dedupe | None,
        estimate: LengthEstimate,
        stages: StageSeconds,
        has_no_rows_left: Callable[[], bool],
        with_prompt: bool,
        with_json: bool,
        stops_early: bool = False,
    ) -> None:
        self.counts = Counts()
        self.totals = BatchTotals()
        if stops_early:
            self.counts.stopped_early, self.counts.saved_tokens_max = Counter(), 0
        self._stops_early = stops_early
        self._engine = engine
        self._steps = StepWatch(engine.num_steps, engine.stats())
        self._has_no_rows_left = has_no_rows_left
        self._clock = engine.clock
        self._run_id = run_id
        self._feed = feed
        self._batch_size = batch_size
        self._next_batch_id = first_batch_id
        self._store = store
        self._budget = budget
        self._request_stop = request_stop
        self._requeue = requeue
        self._dedupe = dedupe
        self._estimate = estimate
        self._stages = stages
        self._with_prompt = with_prompt
        self._with_json = with_json
        self._process = psutil.Process()
        self._group: list[FinishedRow] = []
        self._grouped_at = self._clock.now()
        self._meter = self._open_batch(self._grouped_at)

    @property
    def engine(self) -> Engine:
        """The engine that works for this run now."""
        return self._engine

    @engine.setter
    def engine(self, engine: Engine) -> None:
        self._engine = engine
        self._steps.restart(engine.num_steps, engine.stats())

    @property
    def step_totals(self) -> StepTotals:
        """What the steps of this run add up to."""
        return self._steps.totals

    @property
    def num_settled(self) -> int:
        """Rows that have their output row by this execution."""
        return self.counts.rows

    @property
    def num_unsaved(self) -> int:
        """Settled rows that a kill would still lose."""
        return len(self._group) + self._store.num_unsaved

    def save(self) -> None:
        """Return when no settled row can be lost by a kill."""
        self._hand_over()
        self._store.settle()

    def refuse(self, refusal: Refusal) -> None:
        """An output row that says why this row never reached the engine."""
        error = refusal.error
        row = FinishedRow(
            refusal.shard,
            refusal.row,
            refusal.part_start,
            num_prompt_tokens=error.num_prompt_tokens,
            run_id=self._run_id,
            batch_id=self._meter.batch_id,
            error_type=error.type,
            error=error.message,
            prompt=refusal.text if self._with_prompt else None,
        )
        self._budget.refused(error.type)
        self._finish(row, None)

    def admit(self, prompt: Prompt) -> bool:
        """Whether the engine has to work for this prompt; a copy of a finished one settles here."""
        if self._dedupe is None:
            return True
        admission = self._dedupe.admit(prompt)
        if isinstance(admission, FinishedRow):
            self._copy(admission, prompt)
            return False
        return admission is Admission.LEAD

    def complete(self, prompt: Prompt, completion: Completion) -> None:
        """An output row of what came back; copies that waited for it settle as well."""
        row = self._finished_row(prompt, completion)
        self._budget.finished(row.error_type)
        if row.error_type is None:
            self._estimate.observe(len(prompt.token_ids), row.num_output_tokens or 0)
        if row.stopped_by is not None:
            self._stopped_early(prompt, completion, row.stopped_by)
        self._finish(row, completion)
        if self._dedupe is not None:
            copies, successor = self._dedupe.settle(prompt, row)
            for copy in copies:
                self._copy(row, copy)
            if successor is not None:
                self._requeue([successor])

    def _stopped_early(self, prompt: Prompt, completion: Completion, rule: str) -> None:
        """Count a row that did not run to its end."""
        max_model_len = self.engine.info.max_model_len
        saved = saved_tokens_max(completion, prompt.sampling, max_model_len)
        self._meter.stopped_early(saved)
        counts = self.counts
        counts.stopped_early = (counts.stopped_early or Counter()) + Counter([rule])
        counts.saved_tokens_max = (counts.saved_tokens_max or 0) + saved

    def stale(self, completion: Completion) -> None:
        """Count a completion that nobody waits for."""
        self.counts.stale += 1

    def occupied(self, seconds: float, num_running: int, num_waiting: int) -> None:
        """Time has passed, in a step of the engine or between two of them."""
        has_stepped = self._steps.has_stepped(self._engine.num_steps)
        if has_stepped:
            stats = self._engine.stats()
            self._steps.follow(self._engine.num_steps, stats, seconds)
            self._meter.look(stats)
        num_running, is_blocked = self._steps.in_use(num_running, self._engine.info.max_num_seqs)
        self._meter.passed(
            seconds,
            num_running,
            max(num_waiting, is_blocked),
            is_tail=self._has_no_rows_left(),
            between_steps=not has_stepped,
        )
        if self._group and self._clock.now() - self._grouped_at >= GROUP_S:
            self._hand_over()

    def called(self, completions: list[Completion]) -> None:
        """A call of the batch API has ended."""
        self._steps.follow(self._engine.num_steps, self._engine.stats())
        self._meter.occupancy.add_call(
            (
                (completion.scheduled_at, completion.finished_at)
                for completion in completions
                if completion.scheduled_at is not None and completion.finished_at is not None
            ),
            is_tail=self._has_no_rows_left(),
        )

    def end_batch(self, closed_by: str = "size") -> None:
        """Close the open batch if it holds rows."""
        if self._meter.num_rows == 0:
            return
        if closed_by == "size" and self._meter.num_rows < self._batch_size:
            closed_by = "end" if self._has_no_rows_left() else closed_by
        self._hand_over()
        self._stages.write_s = self._store.write_seconds()
        now = self._clock.now()
        record = self._meter.close(
            now=now,
            stats=self._engine_stats(),
            stages=self._stages,
            rss_bytes=self._process.memory_info().rss,
            closed_by=closed_by,
            steps=self._steps.totals,
            prefill_token_s=self._steps.cost.prefill_token_s,
            sees_steps=self._sees_steps(),
        )
        self.totals.add(record)
        self._meter = self._open_batch(now)
        self._store.batch(record)  # may wait for the disk, in time that is the next batch's

    def _open_batch(self, now: float) -> BatchMeter:
        batch_id = self._next_batch_id
        self._next_batch_id += 1
        stages = self._stages
        return BatchMeter(
            run_id=self._run_id,
            batch_id=batch_id,
            feed=self._feed,
            slots=self.engine.info.max_num_seqs,
            now=now,
            stats=self._engine_stats(),
            stages=StageSeconds(stages.read_s, stages.render_s, stages.write_s),
            steps=self._steps.totals,
            stops_early=self._stops_early,
        )

    def _sees_steps(self) -> bool:
        """Whether time between steps is noted, and lost: an own process works on meanwhile."""
        return self._feed == "continuous" and not self._engine.info.settings.get("own_process")

    def _engine_stats(self) -> EngineStats:
        return self.engine.stats()

    def _copy(self, leader: FinishedRow, prompt: Prompt) -> None:
        self._budget.copied()
        row = copy_row(leader, prompt, run_id=self._run_id, batch_id=self._meter.batch_id)
        self._finish(row, None)

    def _finish(self, row: FinishedRow, completion: Completion | None) -> None:
        counts = self.counts
        counts.rows += 1
        counts.last_completion_at = self._clock.now()
        if row.error_type is not None:
            counts.failed += 1
            counts.failed_by_type[row.error_type] += 1
        elif len(counts.samples) < 2 and row.duplicate_of is None:
            counts.samples.append({"shard": row.shard, "row": row.row, "output": row.output})
        if completion is not None and row.error_type is None:
            counts.generated += 1
            counts.sequences += len(completion.samples)
            counts.prompt_tokens += row.num_prompt_tokens or 0
            counts.output_tokens += row.num_output_tokens or 0
            if row.num_cached_tokens is not None:
                counts.cached_tokens = (counts.cached_tokens or 0) + row.num_cached_tokens
        self._meter.row(row, completion)
        self._group.append(row)
        if len(self._group) >= GROUP_ROWS:
            self._hand_over()
        if self._feed != "generate" and self._meter.num_rows >= self._batch_size:
            self.end_batch()
        stop = self._budget.verdict()
        if stop is not None:
            self._request_stop(stop)

    def _hand_over(self) -> None:
        if self._group:
            self._store.rows(self._group)
            self._group = []
        self._grouped_at = self._clock.now()

    def _finished_row(self, prompt: Prompt, completion: Completion) -> FinishedRow:
        error = completion.error
        if error is None and len(completion.samples) == 1 and prompt.sampling.n == 1:
            return self._row_of_one(prompt, completion, completion.samples[0])
        row = FinishedRow(
            prompt.shard,
            prompt.row,
            prompt.part_start,
            num_prompt_tokens=completion.num_prompt_tokens or len(prompt.token_ids),
            run_id=self._run_id,
            batch_id=self._meter.batch_id,
            prompt=prompt.text if self._with_prompt else None,
        )
        if error is not None:
            return row._replace(error_type=error.type, error=error.message)
        samples = completion.samples
        return row._replace(
            output=[sample.text for sample in samples],
            finish_reason=[sample.finish_reason for sample in samples],
            num_output_tokens=sum(sample.num_tokens for sample in samples),
            num_cached_tokens=completion.num_cached_tokens,
            ttft_s=completion.ttft_s,
            latency_s=completion.latency_s,
            reasoning=[sample.reasoning for sample in samples],
            logprobs=[sample.logprobs for sample in samples],
            json_valid=[is_json(sample.text) for sample in samples] if self._with_json else None,
            stopped_by=completion.stopped_by,
        )

    def _row_of_one(self, prompt: Prompt, completion: Completion, sample: Sample) -> FinishedRow:
        """The same for one completion, field by field: this is nearly every row."""
        return FinishedRow(
            prompt.shard,
            prompt.row,
            prompt.part_start,
            sample.text,
            sample.finish_reason,
            completion.num_prompt_tokens or len(prompt.token_ids),
            sample.num_tokens,
            completion.num_cached_tokens,
            completion.ttft_s,
            completion.latency_s,
            self._run_id,
            self._meter.batch_id,
            None,
            None,
            None,
            prompt.text if self._with_prompt else None,
            sample.reasoning,
            sample.logprobs,
            is_json(sample.text) if self._with_json else None,
            completion.stopped_by,
        )


def is_json(text: str) -> bool:
    """Whether the whole text is one JSON value.

    >>> is_json('[{"a":1}]'), is_json('[{"a":1},{"a"')
    (True, False)
    """
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
