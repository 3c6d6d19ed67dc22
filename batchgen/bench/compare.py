"""What batching buys on these rows and this model: one sample, one engine, every way of batching.

    engine started -> sample -> warm-up -> every way in turn, repeated      (engine_ways.py)
    engine closed  -> static batching, in a process of its own              (static_process.py)
                   -> the rates of the machine, for the roofline            (ceiling.py)
    -> results, facts, differences                                          (findings.py)

What was measured before a Ctrl-C is an answer, too.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import Final

from batchgen.bench.ceiling import Ceiling
from batchgen.bench.comparison import Comparison
from batchgen.bench.engine_ways import keep_trial, measure_engine_ways
from batchgen.bench.findings import Frame, comparison_of, roofline_fraction
from batchgen.bench.gain import padding_fact
from batchgen.bench.measured import CompareOptions, Measured
from batchgen.bench.static_process import StaticProcess, padding_share, why_not
from batchgen.bench.ways import Way, static_sizes
from batchgen.bench.workload import BenchSession
from batchgen.config.models import JobConfig
from batchgen.engine.vllm_settings import is_cpu_build
from batchgen.errors import BatchgenError, EngineDied
from batchgen.monitor.console import Console
from batchgen.run.limits import THREADS
from batchgen.run.stop import StopRun, StopWatch

KEPT_FOR_STATIC: Final = (THREADS, "OMP_WAIT_POLICY", "HF_HUB_OFFLINE")
"""Variables that are set for the engine and hold for static batching as well."""


def compare_job(
    job: JobConfig, options: CompareOptions, *, output_path: str, console: Console
) -> Comparison:
    """Measure all ways; `output_path` is where the caller will keep the result.

    Raises what a run would raise before its first row. A signal, and an engine that dies, end a
    comparison early: then it has `stopped`, and the results so far.
    """
    return _Comparing(job, options, console).run(output_path)


class _Comparing:
    """One comparison from the job to its answer."""

    def __init__(self, job: JobConfig, options: CompareOptions, console: Console) -> None:
        self._job = job
        self._options = options
        self._console = console
        self._session = BenchSession(job, num_rows=options.num_rows)
        self._clock = self._session.clock
        self._began = self._clock.now()
        self._cpus = sorted(os.sched_getaffinity(0))  # an engine may bind this process to fewer
        self._environment = dict(os.environ)
        self._found = Measured()
        self._ceiling: Ceiling | None = None

    def run(self, output_path: str) -> Comparison:
        """Measure what there is to measure, and answer."""
        self._console.line(f"reading rows, then starting the engine: {self._job.model.engine}")
        created_at = datetime.now(UTC).isoformat(timespec="seconds")
        ended_by: StopRun | EngineDied | None = None
        with StopWatch(self._clock, uses_timer=False) as stop:
            try:
                with ExitStack() as engine, stop.interruptible():
                    engine.enter_context(self._session)
                    stop.on_second_signal(self._give_up_engine)
                    self._measure_with_engine()
                with stop.interruptible():
                    self._measure_static()
                    self._find_ceiling()
            except (StopRun, EngineDied) as end:
                ended_by = end
        if isinstance(ended_by, EngineDied) and not self._found.trials:
            raise ended_by
        frame = Frame(
            job=self._job.name,
            created_at=created_at,
            output_path=output_path,
            num_repeats=self._options.num_repeats,
            exit_code=0 if ended_by is None else ended_by.exit_code,
            stopped=None if ended_by is None else str(ended_by),
            wall_s=self._clock.now() - self._began,
        )
        return comparison_of(self._found, self._ceiling, frame)

    def _measure_with_engine(self) -> None:
        for note in self._session.engine.info.settings.get("chosen", ()):
            self._console.line(f"chosen for this machine: {note}")
        measure_engine_ways(self._session, self._options, self._found, self._console)

    def _give_up_engine(self) -> None:
        self._session.engine.interrupt("a second signal")

    def _measure_static(self) -> None:
        """The same rows through Hugging Face transformers; a failure of it is a note."""
        found = self._found
        if not self._options.static or found.info is None:
            return
        reason = why_not(self._job.model, found.info.settings)
        if reason is None and not found.sizes:
            reason = "there is no batch size to measure"
        if reason is not None:
            found.notes.append(f"static was left out: {reason}")
            return
        self._console.line("static: loading the model into transformers")
        try:
            self._keep_static(found.info.max_model_len, str(found.info.settings["dtype"]))
        except BatchgenError as problem:
            found.notes.append(f"static failed: {problem}")
        if any(way.name == "static" for way in found.trials):
            found.notes.append("static was measured after the other ways, in a process of its own")

    def _keep_static(self, max_model_len: int, dtype: str) -> None:
        found, options = self._found, self._options
        seed = self._job.sampling.seed
        process = StaticProcess(
            self._job.model,
            dtype=dtype,
            device="cpu" if is_cpu_build() else "cuda",
            cpus=self._cpus,
            environment=self._static_environment(),
            seed=seed if isinstance(seed, int) else 0,
        )
        sizes = static_sizes(found.sizes)
        batch_sizes = list(sizes) * options.num_repeats
        trials = process.trials(
            found.workload, batch_sizes, is_pinned=found.is_pinned, max_model_len=max_model_len
        )
        ends_at = self._began + 60 * options.max_minutes
        with closing(trials):
            for index, trial in enumerate(trials, start=1):
                keep_trial(
                    Way("static", batch_sizes[index - 1]), trial, found, options, self._console
                )
                if len(sizes) <= index < len(batch_sizes) and self._clock.now() > ends_at:
                    found.notes.append("static was repeated less often, for want of time")
                    break
        found.facts += [
            padding_fact(Way("static", size).label, padding_share(found.workload, size))
            for size in sizes
        ]

    def _static_environment(self) -> Mapping[str, str]:
        kept = {name: os.environ[name] for name in KEPT_FOR_STATIC if name in os.environ}
        return {**self._environment, **kept}

    def _find_ceiling(self) -> None:
        """The roofline, once nothing else runs; where it is not known, a note says why."""
        model, info, found = self._job.model, self._found.info, self._found
        if info is None:
            return
        try:
            self._ceiling = Ceiling.find(model, info, self._cpus)
            shares = [roofline_fraction(self._ceiling, trials) for trials in found.trials.values()]
            if max((share or 0.0 for share in shares), default=0.0) > 1:
                # Nothing beats the roofline: the rates were measured while something else ran.
                self._ceiling = Ceiling.find(model, info, self._cpus, again=True)
        except BatchgenError as problem:
            found.notes.append(f"the roofline is not known: {problem}")
