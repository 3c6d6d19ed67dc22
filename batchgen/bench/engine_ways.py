"""The ways that one started engine goes through, in turn.

A warm-up over all rows finds how many tokens each row writes. These lengths are pinned, so that
every way does the same work, with the same seeds and from an empty prefix cache. In each repeat the
decode steps are timed first, then comes every way, forwards in one repeat and backwards in the
next: a machine that is slow for a minute is slow for all of them.
"""

from collections.abc import Sequence
from typing import Final

from batchgen.bench.dynamic import arrival_moments, run_continuous_arriving, run_dynamic
from batchgen.bench.measured import CompareOptions, Measured
from batchgen.bench.static_process import why_not
from batchgen.bench.step_law import StepPoint
from batchgen.bench.steps import LEAST_TOKENS, measure_steps, step_sizes, step_tokens
from batchgen.bench.trials import Trial, measure, run_continuous
from batchgen.bench.ways import Pace, Way, default_sizes, engine_ways, num_rows_of, row_shares
from batchgen.bench.workload import BenchSession, Workload, is_structured
from batchgen.monitor.console import Console
from batchgen.monitor.printable import counted
from batchgen.monitor.progress import duration
from batchgen.protocols import Engine

MIDDLE_SIZE: Final = 4


def measure_engine_ways(
    session: BenchSession, options: CompareOptions, found: Measured, console: Console
) -> None:
    """Fill `found`, trial by trial, so that what there is survives an early end."""
    _EngineWays(session, options, found, console).measure()


def keep_trial(
    way: Way, trial: Trial, found: Measured, options: CompareOptions, console: Console
) -> None:
    """Add a trial, and say so."""
    repeats = found.trials.setdefault(way, [])
    repeats.append(trial)
    console.line(
        f"{way.label}, {len(repeats)} of {options.num_repeats}: {trial.num_rows:,} rows in"
        f" {trial.wall_s:.2f} s, {trial.output_tokens_per_s:,.1f} output tokens/s"
    )


class _EngineWays:
    """One engine, its rows, and the ways."""

    def __init__(
        self, session: BenchSession, options: CompareOptions, found: Measured, console: Console
    ) -> None:
        self._session = session
        self._engine: Engine = session.engine
        self._options = options
        self._found = found
        self._console = console
        seed = session.job.sampling.seed
        self._seed = seed if isinstance(seed, int) else 0

    def measure(self) -> None:
        """Warm up, plan, and go through all ways as often as asked for."""
        found, options = self._found, self._options
        found.info, found.tokenizer = self._engine.info, self._session.tokenizer
        found.sizes = self._fitting_sizes()
        self._warm_up()
        found.step_tokens = step_tokens(found.workload, self._engine.info.max_model_len)
        if found.step_tokens is None:
            found.notes.append("prompts leave no room for enough output tokens to time a step")
        ways = engine_ways(found.sizes, options.arrival_rows_per_s)
        rows_of = self._plan(ways)
        for repeat in range(options.num_repeats):
            for point in self._time_steps():
                found.steps.setdefault(point.num_running, []).append(point.step_s)
            for way in ways if repeat % 2 == 0 else ways[::-1]:
                trial = self._run(way, found.workload.spread(rows_of[way]))
                keep_trial(way, trial, found, options, self._console)

    def _fitting_sizes(self) -> tuple[int, ...]:
        """The sizes asked for, or all that make sense; none is larger than the sample."""
        num_rows, slots = len(self._session.workload.prompts), self._engine.info.max_num_seqs
        notes, asked_for = self._found.notes, self._options.sizes
        if asked_for is None:
            if num_rows < slots:
                notes.append(
                    f"the engine has {slots:,} slots, the sample {num_rows:,} rows; to see larger"
                    f" sizes take more rows: --rows {slots}"
                )
            return default_sizes(min(slots, num_rows))
        too_large = [str(size) for size in sorted(set(asked_for)) if size > num_rows]
        if too_large:
            notes.append(f"left out: {', '.join(too_large)}, as the sample has {num_rows:,} rows")
        return tuple(size for size in sorted(set(asked_for)) if size <= num_rows)

    def _warm_up(self) -> None:
        """One pass over all rows; those that fail are left out from then on."""
        workload, found = self._session.workload, self._found
        self._console.line(f"warm-up: {len(workload.prompts):,} rows")
        trial = run_continuous(self._engine, workload, max(found.sizes, default=1))
        good = [row for row in trial.rows if row.completion.error is None]
        found.num_failed = len(trial.rows) - len(good)
        found.lengths = tuple(
            -(-row.num_output_tokens // len(row.completion.samples)) for row in good
        )
        prompts = tuple(row.prompt for row in good)
        found.workload = Workload(prompts, workload.num_looked_at, workload.num_refused)
        has_form = any(map(is_structured, prompts))
        found.is_pinned = not (self._options.free_lengths or has_form)
        if found.is_pinned:
            found.workload = found.workload.pinned(found.lengths)
        elif not self._options.free_lengths:
            found.notes.append("lengths are free: a JSON schema or grammar says where a row ends")
        if found.num_failed:
            found.notes.append(f"{found.num_failed:,} rows failed in the warm-up: left out")
        if self._session.job.stop_early.is_active:
            found.notes.append("stop_early is not applied: rows go on as they would without it")

    def _time_steps(self) -> list[StepPoint]:
        found = self._found
        if found.step_tokens is None:
            return []
        sizes = step_sizes([size for size in found.sizes if size <= self._most_rows])
        measured = measure_steps(self._engine, found.workload, sizes, found.step_tokens)
        return [point for point, _ in measured]

    @property
    def _most_rows(self) -> int:
        """Rows that can decode side by side."""
        slots = self._engine.info.max_num_seqs // self._found.num_each
        return min(slots, len(self._found.lengths))

    def _plan(self, ways: Sequence[Way]) -> dict[Way, int]:
        """Rows for each way, and how long all will take, told in a sentence."""
        num_rows, options = len(self._found.lengths), self._options
        pace = self._pace()
        if pace is None:
            return dict.fromkeys(ways, num_rows)
        seconds = {way: self._predict_s(way, pace) for way in ways}
        paced_s = sum(s for way, s in seconds.items() if way.arrival_rows_per_s is not None)
        free_s = {way: s for way, s in seconds.items() if way.arrival_rows_per_s is None}
        shares = row_shares(free_s, 60 * options.max_minutes / options.num_repeats - paced_s)
        rows_of = {way: num_rows_of(way, num_rows, shares.get(way, 1.0)) for way in ways}
        total_s = sum(s * rows_of[way] / num_rows for way, s in seconds.items())
        comes_after = (
            options.static and why_not(self._session.job.model, self._engine.info.settings) is None
        )
        self._console.line(
            f"{counted(num_rows, 'row')} in {counted(len(ways), 'way')},"
            f" {counted(options.num_repeats, 'time')}: about"
            f" {duration(total_s * options.num_repeats)}"
            + (", and then static" if comes_after else "")
        )
        cut = [f"{way.label}: {rows_of[way]:,}" for way in ways if rows_of[way] < num_rows]
        if cut:
            self._found.notes.append(
                f"to stay within {options.max_minutes:g} minutes (--max-minutes) some ways did"
                f" fewer than {num_rows:,} rows, evenly spread, and have the rates of these:"
                f" {'; '.join(cut)}"
            )
        return rows_of

    def _pace(self) -> Pace | None:
        """A first look at the steps, after a call that warms up; None: not to be timed."""
        found = self._found
        if found.step_tokens is None:
            return None
        largest = max((size for size in found.sizes if size <= self._most_rows), default=1)
        sizes = sorted({1, min(MIDDLE_SIZE, largest), largest})
        measure_steps(self._engine, found.workload, [1], LEAST_TOKENS)
        measured = measure_steps(self._engine, found.workload, sizes, found.step_tokens)
        if not measured:
            return None
        point, trial = measured[0]
        first = trial.rows[0]
        prefill_s = max(0.0, (first.ttft_s or 0.0) - point.step_s)
        num_tokens = max(1, len(first.prompt.token_ids))
        return Pace(tuple(point for point, _ in measured), prefill_s / num_tokens)

    def _predict_s(self, way: Way, pace: Pace) -> float:
        found = self._found
        outputs = (number * found.num_each for number in found.lengths)
        seconds = pace.predict_s(way, list(zip(found.prompt_lengths, outputs, strict=True)))
        if way.arrival_rows_per_s is None:
            return seconds
        return max(seconds, len(found.lengths) / way.arrival_rows_per_s)

    def _run(self, way: Way, workload: Workload) -> Trial:
        engine, options = self._engine, self._options
        if way.arrival_rows_per_s is None:
            return measure(way.name, way.batch_size, engine, workload)
        moments = arrival_moments(
            len(workload.prompts), way.arrival_rows_per_s, gaps=options.gaps, seed=self._seed
        )
        if way.name == "continuous":
            return run_continuous_arriving(engine, workload, way.batch_size, moments)
        trial, rows = run_dynamic(
            engine, workload, way.batch_size, moments, max_wait_s=options.max_wait_s
        )
        self._found.closed[way] = rows.num_full, rows.num_timed_out
        return trial
