"""One stretch of work with an engine: from the first prompt to the last finished row.

Everything here is wiring: who gets whose output. The steps stand in `Execution.run` in the order
in which they happen; the parts that do the work are feeds, pipeline, recorder, recovery, store.
"""

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from batchgen.corpus.prompts import PromptBuilder
from batchgen.corpus.tokenizing import load_tokenizer
from batchgen.engine.factory import create_engine, known_model_len, prepare_environment
from batchgen.engine.faults import FaultState
from batchgen.monitor.console import Console
from batchgen.monitor.progress import ProgressReporter, Snapshot
from batchgen.protocols import Clock, Engine, Tokenizer
from batchgen.records import EngineInfo
from batchgen.run.broadcast import Broadcast
from batchgen.run.budget import ErrorBudget
from batchgen.run.garbage import rare_collections
from batchgen.run.pipeline import PromptPipeline
from batchgen.run.planning import Plan
from batchgen.run.recorder import Counts, Recorder
from batchgen.run.recovery import EngineKeeper, Recovery
from batchgen.run.stall import StallWatch, end_process
from batchgen.run.stop import StopRun, StopWatch
from batchgen.run.work import BLOCK_ROWS
from batchgen.schedule.dedupe import Dedupe
from batchgen.schedule.early_stop import EarlyStop
from batchgen.schedule.feeds import InFlight, feed_continuous, feed_generate, feed_sequential
from batchgen.schedule.ordering import Item, LengthEstimate, RowQueue
from batchgen.stats.meter import StageSeconds
from batchgen.stats.steps import StepTotals
from batchgen.stats.totals import BatchTotals

WINDOW_SLOTS = 2
"""`window: auto` in multiples of the engine's slots: enough that a row is always waiting."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an execution has done, for summary and manifest. Seconds of the run's clock."""

    counts: Counts
    engine: EngineInfo | None
    engine_restarts: int
    stopped: StopRun | None
    tokenizer_s: float
    engine_start_s: float
    generate_s: float
    publish_s: float
    totals: BatchTotals
    """What the batches add up to."""
    steps: StepTotals
    """What the steps of the engines add up to."""
    cpus: Sequence[int]
    """Cores that this process may use; an engine binds it to fewer."""


class Execution:
    """Does the plan's work once. `run` returns at its orderly end, early or not."""

    def __init__(
        self,
        plan: Plan,
        clock: Clock,
        stop: StopWatch,
        console: Console,
        broadcast: Broadcast,
    ) -> None:
        self._plan = plan
        self._job = plan.job
        self._clock = clock
        self._stop = stop
        self._console = console
        self._broadcast = broadcast
        self._phase = "engine start"
        self._tokenizer: Tokenizer
        self._stages = StageSeconds()
        self._estimate = LengthEstimate()
        self._in_flight = InFlight()
        rules = self._job.stop_early
        self._early_stop = EarlyStop(rules) if rules.is_active else None
        self._faults = FaultState()
        self._recorder: Recorder | None = None
        self._stopped: StopRun | None = None
        self._seconds: dict[str, float] = {}
        self._cpus = sorted(os.sched_getaffinity(0))
        self._info: EngineInfo | None = None
        self._keeper = EngineKeeper(
            self._create_engine,
            max_failed_restarts=self._job.errors.engine_restarts,
            clock=clock,
            on_stale=lambda completion: self._sink().stale(completion),
            on_engine=self._replace_engine,
            on_death=console.warn,
        )
        self._stop.on_second_signal(lambda: self._keeper.interrupt("a second signal"))

    def run(self) -> None:
        """Feed an engine until nothing is left or the run has to stop; then publish."""
        with self._progress():
            self._work()
            self._phase = "publish"
            began = time.perf_counter()
            self._plan.store.close()
            self._seconds["publish"] = time.perf_counter() - began

    def _work(self) -> None:
        with self._keeper:
            closed_by = "engine"
            try:
                self._generate()
                closed_by = "end"
            except StopRun as stop:
                self._stopped, closed_by = stop, stop.closed_by
                self._console.line(f"{stop.reason}; saving what is finished")
            finally:
                # Before the engine is closed, which takes a second that is no batch's.
                if self._recorder is not None:
                    self._recorder.end_batch(closed_by)

    def _generate(self) -> None:
        """Start the engine while prompts are prepared, and feed it."""
        prepare_environment(self._job.model)  # before anything imports torch
        began = time.perf_counter()
        with self._stop.interruptible():
            self._tokenizer = load_tokenizer(self._job.model, self._job.prompt)
        self._seconds["tokenizer"] = time.perf_counter() - began
        max_model_len = known_model_len(self._job.model) or self._start_engine().info.max_model_len
        with self._pipeline(max_model_len) as pipeline:
            rows = self._queue(pipeline)
            engine = self._keeper.engine or self._start_engine()
            try:
                self._feed(rows, engine)
            except StopRun:
                self._abort()
                raise

    def outcome(self) -> Outcome:
        """What was done."""
        return Outcome(
            counts=self._recorder.counts if self._recorder else Counts(),
            engine=self._info,
            engine_restarts=self._keeper.num_restarts,
            stopped=self._stopped,
            tokenizer_s=self._seconds.get("tokenizer", 0.0),
            engine_start_s=self._seconds.get("engine_start", 0.0),
            generate_s=self._seconds.get("generate", 0.0),
            publish_s=self._seconds.get("publish", 0.0),
            totals=self._recorder.totals if self._recorder else BatchTotals(),
            steps=self._recorder.step_totals if self._recorder else StepTotals(),
            cpus=self._cpus,
        )

    def _start_engine(self) -> Engine:
        began = self._clock.now()
        with self._stop.interruptible():
            engine = self._keeper.start()
        self._seconds["engine_start"] = self._clock.now() - began
        self._info = engine.info
        for note in engine.info.settings.get("chosen", ()):
            self._console.line(f"chosen for this machine: {note}")
        return engine

    def _create_engine(self) -> Engine:
        return create_engine(
            self._job.model,
            tokenizer=self._tokenizer,
            sampling=self._job.sampling,
            clock=self._clock,
            faults=self._faults,
        )

    def _replace_engine(self, engine: Engine) -> None:
        self._sink().engine = engine
        self._info = engine.info

    def _pipeline(self, max_model_len: int) -> PromptPipeline:
        builder = PromptBuilder(
            self._job.prompt,
            self._job.sampling,
            self._tokenizer,
            max_model_len=max_model_len,
            where=self._job.where,
        )
        store, selection = self._plan.store, self._plan.work.selection

        def open_part(shard: str, start_row: int, source_start: int | None) -> None:
            redo = None if selection is None else selection.get((shard, start_row))
            store.open_part(shard, start_row, source_start, redo)

        return PromptPipeline(
            self._plan.work.blocks,
            builder.build,
            on_part=open_part,
            on_extent=store.extent,
            stages=self._stages,
            max_blocks=max(2, 2 * self._job.batch.look_ahead // BLOCK_ROWS),
        )

    def _queue(self, pipeline: PromptPipeline) -> RowQueue:
        def fetch(wait: bool) -> Sequence[Item] | None:
            if not wait:
                return pipeline.fetch(False)
            with self._stop.interruptible():
                return pipeline.fetch(True)

        batch = self._job.batch
        return RowQueue(
            fetch,
            order=batch.order,
            look_ahead=batch.look_ahead,
            estimate=self._estimate,
            source_is_over=lambda: pipeline.is_exhausted,
        )

    def _feed(self, rows: RowQueue, engine: Engine) -> None:
        self._phase = "generate"
        began = self._clock.now()
        self._recorder = self._new_recorder(rows, engine)
        recovery = Recovery(
            self._keeper,
            rows,
            rows.push_back,
            self._recorder,
            self._stop,
            self._in_flight,
            self._early_stop,
        )
        try:
            with self._stall_watch(), rare_collections():
                recovery.run(lambda engine: self._feed_engine(rows, engine))
        finally:
            self._seconds["generate"] = self._clock.now() - began

    def _feed_engine(self, rows: RowQueue, engine: Engine) -> None:
        batch, early_stop = self._job.batch, self._early_stop
        places = rows, engine, self._sink(), self._stop, self._in_flight
        match batch.feed:
            case "continuous":
                slots = engine.info.max_num_seqs
                window = WINDOW_SLOTS * slots if batch.window == "auto" else batch.window
                feed_continuous(*places, window=window, early_stop=early_stop)
            case "generate":
                feed_generate(*places, batch_size=batch.size, early_stop=early_stop)
            case "sequential":
                feed_sequential(*places, early_stop=early_stop)

    def _new_recorder(self, rows: RowQueue, engine: Engine) -> Recorder:
        job, errors = self._job, self._job.errors
        return Recorder(
            run_id=self._plan.run_id,
            feed=job.batch.feed,
            batch_size=job.batch.size,
            first_batch_id=self._plan.store.state.next_batch_id,
            engine=engine,
            store=self._plan.store,
            budget=ErrorBudget(errors.stop_share, errors.stop_count),
            request_stop=self._stop.request,
            requeue=rows.push_back,
            dedupe=Dedupe() if job.batch.dedupe else None,
            estimate=self._estimate,
            stages=self._stages,
            has_no_rows_left=lambda: rows.is_over,
            with_prompt=job.output.prompt,
            with_json=job.output.expects_json,
            stops_early=job.stop_early.is_active,
        )

    def _stall_watch(self) -> StallWatch:
        def give_up(reason: str) -> None:
            self._plan.store.flush()
            self._broadcast.gave_up(reason)
            end_process(reason, self._console)

        timeout_s = self._job.errors.stall_timeout
        return StallWatch(self._keeper, self._clock, timeout_s, give_up=give_up)

    def _sink(self) -> Recorder:
        if self._recorder is None:
            raise RuntimeError("no row has been fed yet")
        return self._recorder

    def _abort(self) -> None:
        """Take back what still runs; those rows are done again by the next run."""
        engine = self._keeper.engine
        if engine is not None and len(self._in_flight):
            engine.abort(self._in_flight.request_ids)
            self._in_flight.take_all()

    def _progress(self) -> ProgressReporter:
        return ProgressReporter(
            self._clock,
            self._snapshot,
            console=self._console,
            progress_path=self._plan.layout.progress,
            run_id=self._plan.run_id,
            on_sample=self._broadcast.progressed,
        )

    def _snapshot(self) -> Snapshot:
        counts = self._recorder.counts if self._recorder else Counts()
        finished = counts.last_completion_at
        return Snapshot(
            phase=self._phase,
            rows_done=self._plan.before.num_rows + counts.rows,
            rows_total=self._plan.rows_total,
            total_is_estimate=self._plan.total_is_estimate,
            rows_failed=self._plan.before.num_failed + counts.failed,
            failed_by_type=Counter(self._plan.before.failed_by_type) + counts.failed_by_type,
            num_prompt_tokens=counts.prompt_tokens,
            num_output_tokens=counts.output_tokens,
            last_completion_age_s=None if finished is None else self._clock.now() - finished,
        )
