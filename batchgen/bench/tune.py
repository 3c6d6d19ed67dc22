"""`batchgen tune`: one engine start, a sweep over concurrency, a recommendation.

The engine is the job's, started once with all the slots that may be recommended. A window of n
rows on it behaves as an engine of n slots with a full queue does, so that no restart is needed to
find the number of slots. Everything the sweep has seen is kept wherever it ends: at its end, at
the limit of its budget, at Ctrl-C, or with the engine.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from batchgen.bench.latency_limit import LatencyLimit
from batchgen.bench.proposals import Proposal, larger_steps, more_slots, prefix_order
from batchgen.bench.recommendation import Recommendation, recommend, within
from batchgen.bench.steady import rows_needed
from batchgen.bench.sweep import Sweep, SweepSettings
from batchgen.bench.sweep_points import SweepPoint, point_of
from batchgen.bench.sweep_rows import SweepRows
from batchgen.bench.trying import repeats_at, try_order
from batchgen.bench.tune_notes import notes_on_job, notes_on_points, notes_on_rows
from batchgen.bench.tune_report import TuneReport, overrides_for
from batchgen.bench.workload import FIRST_LOOK, BenchSession
from batchgen.config.models import JobConfig
from batchgen.engine.factory import engine_clock
from batchgen.errors import DataError, EngineDied, EngineError
from batchgen.monitor.console import Console, SilentConsole
from batchgen.protocols import Engine
from batchgen.records import EngineInfo
from batchgen.run.stop import StopRun, StopWatch

LEAST_ROWS: Final = 1024
"""Rows of the sample, where the input has them: enough for trials of some seconds."""
MOST_ROWS: Final = 4096
"""Rows of the sample at most; a higher concurrency than a quarter of it repeats some."""


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What one sweep may ask for beyond the job file."""

    max_concurrency: int | None = None
    """Slots to start the engine with, in place of `model.max_num_seqs`."""
    repeats: int = 3
    max_minutes: float = 10.0
    """For measuring; starting the engine is not counted."""
    limits: tuple[LatencyLimit, ...] = ()
    arrival_rate: float | None = None
    """Rows per second that a server would get."""
    restart: bool = False
    """Measure proposals that need another start of the engine."""


def tune_job(
    job: JobConfig, options: TuneOptions | None = None, *, console: Console | None = None
) -> TuneReport:
    """Sweep over the job's rows on its engine.

    Raises a BatchgenError where the sweep cannot begin. A signal and an engine that dies after the
    first point make a report with `stopped` and an exit code.
    """
    options = options or TuneOptions()
    if options.max_concurrency is not None:
        job = with_model(job, max_num_seqs=options.max_concurrency)
    clock = engine_clock(job.model)
    with StopWatch(clock) as stop:
        tuner = _Tuner(job, options, stop, console or SilentConsole())
        tuner.run()
    return tuner.report()


class _Tuner:
    """One invocation: its engine starts, and what they gave."""

    def __init__(
        self, job: JobConfig, options: TuneOptions, stop: StopWatch, console: Console
    ) -> None:
        self._job = job
        self._options = options
        self._stop = stop
        self._console = console
        self._sweep: Sweep | None = None
        self._rows: SweepRows | None = None
        self._info: EngineInfo | None = None
        self._proposals: list[Proposal] = []
        self._notes: list[str] = []
        self._later_points: list[SweepPoint] = []
        self._stopped: tuple[str, int] | None = None
        self._num_starts = 0
        self._first_start_s: float | None = None
        self._measured_s = 0.0

    def run(self) -> None:
        """Sweep; then what can be tried on this engine, then what needs another one."""
        try:
            with self._engine(self._job) as session:
                self._sweep_on(session)
                self._propose(session.engine)
                self._try_order(session.engine)
            if self._options.restart:
                self._try_restarts()
        except StopRun as stop:
            self._stopped = stop.reason, stop.exit_code
        except EngineDied as death:
            if not self._points():
                raise
            self._give_up(death)

    def report(self) -> TuneReport:
        """Everything so far."""
        points, found = self._points(), self._recommended()
        reason, exit_code = self._stopped or (None, 0)
        sweep, rows = self._sweep, self._rows
        return TuneReport(
            kind="tune",
            job=self._job.name,
            points=tuple(points),
            recommended=found,
            overrides=overrides_for(
                self._job,
                None if found is None else found.num_running,
                1 if rows is None else rows.sequences_per_row,
                self._proposals,
            ),
            proposals=tuple(self._proposals),
            notes=(*self._notes, *notes_on_points(points, sweep), *self._why_nothing()),
            left_out=() if sweep is None else tuple(sorted(sweep.left_out)),
            noise=sweep.noise if sweep is not None and points else None,
            tokens_per_row=None if rows is None else rows.tokens_per_row,
            engine_starts=self._num_starts,
            engine_start_s=self._first_start_s,
            measured_s=self._measured_s,
            stopped=reason,
            exit_code=exit_code,
            engine=None if self._info is None else asdict(self._info),
        )

    def _points(self) -> list[SweepPoint]:
        points = [] if self._sweep is None else self._sweep.points()
        return sorted((*points, *self._later_points), key=lambda point: point.num_running)

    @contextmanager
    def _engine(self, job: JobConfig, *, num_rows: int | None = None) -> Iterator[BenchSession]:
        """A started engine with the job's rows; seconds on it count as measuring."""
        with ExitStack() as stack:
            with self._stop.interruptible():
                session = BenchSession(job, num_rows=num_rows or sample_size)
                stack.enter_context(session)
            self._num_starts += 1
            self._stop.on_second_signal(lambda: session.engine.interrupt("a second signal"))
            if self._first_start_s is None:
                self._first_start_s, self._info = session.engine_start_s, session.engine.info
            self._console.line(_engine_line(session))
            began = session.clock.now()
            try:
                yield session
            finally:
                self._measured_s += session.clock.now() - began

    def _sweep_on(self, session: BenchSession) -> None:
        job, engine, workload = self._job, session.engine, session.workload
        rows = SweepRows(workload.prompts, order=job.batch.order, dedupe=job.batch.dedupe)
        settings = SweepSettings(
            most_running=max(1, engine.info.max_num_seqs // rows.sequences_per_row),
            repeats=self._options.repeats,
            budget_s=60 * self._options.max_minutes,
            limits=self._options.limits,
        )
        self._rows = rows
        self._sweep = Sweep(
            engine,
            rows,
            settings,
            stop=self._stop,
            rules=job.stop_early,
            console=self._console,
        )
        self._notes += notes_on_rows(session, rows)
        self._notes += notes_on_job(job)
        self._sweep.run()

    def _propose(self, engine: Engine) -> None:
        """What the points speak for."""
        sweep, rows = self._swept()
        points, chosen = sweep.points(), self._chosen()
        if chosen is None:
            return
        info = engine.info
        prompts = rows.take(chosen.num_rows)
        found = (
            more_slots(
                points,
                chosen,
                slots=info.max_num_seqs,
                sequences_per_row=rows.sequences_per_row,
                noise=sweep.noise,
            ),
            larger_steps(chosen, prompts, info.settings),
            prefix_order(
                chosen,
                rows.ordered(prompts, "prefix"),
                order=self._job.batch.order,
                info=info,
            ),
        )
        self._proposals = [proposal for proposal in found if proposal is not None]

    def _try_order(self, engine: Engine) -> None:
        """The order of rows needs no other engine: it is measured where there is time."""
        sweep, rows = self._swept()
        chosen = self._chosen()
        for index, proposal in enumerate(self._proposals):
            if proposal.key != "batch.order" or chosen is None:
                continue
            if not sweep.has_time(chosen.num_running, 2 * self._options.repeats):
                self._notes.append("there was no time to measure batch.order: prefix")
                continue
            self._proposals[index] = try_order(
                proposal,
                chosen,
                engine,
                rows,
                job=self._job,
                repeats=self._options.repeats,
                noise=sweep.noise,
                stop=self._stop,
            )

    def _try_restarts(self) -> None:
        """Each proposal that needs an engine of its own gets one."""
        for index, proposal in enumerate(self._proposals):
            if proposal.key == "batch.order":
                continue
            self._console.line(f"starting the engine again with {proposal.override}")
            try:
                self._proposals[index] = self._restarted(proposal)
            except (DataError, EngineError) as exc:
                self._notes.append(f"{proposal.override} could not be measured: {exc.problems[0]}")

    def _restarted(self, proposal: Proposal) -> Proposal:
        sweep, rows = self._swept()
        base = self._chosen()
        if base is None:
            raise RuntimeError("a proposal without a recommended point")
        needs_slots = proposal.key == "model.max_num_seqs"
        num_running = base.num_running
        if needs_slots:
            num_running = int(proposal.value) // rows.sequences_per_row
        with self._engine(with_proposal(self._job, proposal), num_rows=FIRST_LOOK) as session:
            trials = repeats_at(
                num_running,
                session.engine,
                rows,
                num_rows=base.num_rows,
                job=self._job,
                repeats=self._options.repeats,
                stop=self._stop,
            )
        point = point_of(trials, rows.tokens_per_row, engine_start=self._num_starts)
        gain = point.output_tokens_per_s / base.output_tokens_per_s - 1
        result = proposal.measured(gain, max(sweep.noise, point.spread or 0.0))
        if needs_slots and result.pays:
            self._later_points.append(point)
        return result

    def _give_up(self, death: EngineDied) -> None:
        """The engine is gone; what has been measured stays. Ctrl-C may be what ended it."""
        sweep, _ = self._swept()
        try:
            self._stop.check()
        except StopRun as stop:
            self._stopped = stop.reason, stop.exit_code
        else:
            reason = f"the engine died with {sweep.last_tried:,} rows in flight"
            self._stopped = f"{reason}: {death.problems[0]}", death.exit_code

    def _swept(self) -> tuple[Sweep, SweepRows]:
        if self._sweep is None or self._rows is None:
            raise RuntimeError("no engine has been started")
        return self._sweep, self._rows

    def _chosen(self) -> SweepPoint | None:
        """The point that is recommended by now."""
        found = self._recommended()
        number = None if found is None else found.num_running
        return next((point for point in self._points() if point.num_running == number), None)

    def _recommended(self) -> Recommendation | None:
        """What the points recommend; nothing where there is none, or the best is yet to come."""
        points = self._points()
        if not points or self._is_cut_short():
            return None
        return recommend(points, self._options.limits, self._options.arrival_rate)

    def _is_cut_short(self) -> bool:
        """Whether time or a signal ended the climb before its end showed.

        A limit that the last point breaks is such an end, too: more in flight only wait longer. So
        is an engine that died of the next point.
        """
        points, limits = self._points(), self._options.limits
        if self._sweep is None or not self._sweep.is_rising or not points:
            return False
        died = self._stopped is not None and self._stopped[1] == EngineDied.exit_code
        return not died and (not limits or bool(within(points[-1:], limits)))

    def _why_nothing(self) -> Iterator[str]:
        if self._is_cut_short():
            ended_by = "--max-minutes" if self._stopped is None else "a signal"
            yield (
                f"{ended_by} ended the sweep at {self._points()[-1].num_running:,} in flight, while"
                " more still gained throughput: the best may lie beyond, so nothing is recommended"
            )


def sample_size(info: EngineInfo) -> int:
    """Rows for a sweep up to all slots of this engine."""
    return min(MOST_ROWS, max(LEAST_ROWS, rows_needed(info.max_num_seqs)))


def with_model(job: JobConfig, **values: Any) -> JobConfig:
    """The job with other values in its model section, which are not checked again."""
    return job.model_copy(update={"model": job.model.model_copy(update=values)})


def with_proposal(job: JobConfig, proposal: Proposal) -> JobConfig:
    """The job with a proposed engine setting."""
    name = proposal.key.rsplit(".", 1)[1]
    if proposal.key.startswith("model.extra."):
        return with_model(job, extra={**job.model.extra, name: proposal.value})
    return with_model(job, **{name: proposal.value})


def _engine_line(session: BenchSession) -> str:
    info = session.engine.info
    tokens = (
        "" if info.kv_cache_tokens is None else f", KV cache of {info.kv_cache_tokens:,} tokens"
    )
    return (
        f"{info.name} {info.version} started in {session.engine_start_s:.1f} s:"
        f" {info.max_num_seqs:,} slots{tokens}"
    )
