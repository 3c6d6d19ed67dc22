"""The whole run, top to bottom: plan, read ahead, start the engine, feed it, record, publish.

    shards -> rows -> prompts -> (order, window) -> engine -> completions -> journal -> parts

Three threads share the work. The reading thread makes prompts ahead of the engine, the main thread
drives the engine and nothing else, the writing thread journals and publishes. Bounded queues are
between them, so memory does not grow with the corpus, and the engine waits for the disk only where
a kill would cost more than one window.
"""

from contextlib import closing
from pathlib import Path

from batchgen.config.models import JobConfig
from batchgen.corpus.shards import find_shards
from batchgen.engine.clock import SimulatedClock
from batchgen.engine.factory import engine_clock
from batchgen.monitor.console import Console, SilentConsole
from batchgen.monitor.logs import log_to
from batchgen.output.layout import RunLayout
from batchgen.output.lock import RunLock
from batchgen.run.broadcast import Broadcast
from batchgen.run.closing import begin, finish
from batchgen.run.options import RunOptions
from batchgen.run.planning import deadline_seconds, make_plan, new_run_id, output_path
from batchgen.run.stop import StopWatch
from batchgen.run.summary import RunSummary


def run_job(
    job: JobConfig, options: RunOptions | None = None, *, console: Console | None = None
) -> RunSummary:
    """Do what is left of the job, and say how it went.

    Raises a BatchgenError where the run cannot begin or has to give up; an early but orderly end
    (signal, deadline, error budget) is a summary with `stopped` and its exit code. Pings, webhook
    and metrics of the job go out from here, whichever end it is.
    """
    options = options or RunOptions()
    console = console or SilentConsole()
    run_id = console.run_id = new_run_id()
    with Broadcast(job, run_id, console) as broadcast:
        clock = engine_clock(job.model)
        layout = RunLayout(output_path(job, options))
        shards = find_shards(job.input, exclude=Path(job.output.path))
        deadline_s = deadline_seconds(options, console)
        uses_timer = not isinstance(clock, SimulatedClock)
        with (
            StopWatch(clock, deadline_s, uses_timer=uses_timer) as stop,
            RunLock(layout),
            log_to(layout.log, log_format=console.log_format, run_id=run_id),
            broadcast.working(layout),
        ):
            plan = make_plan(job, options, layout, shards, console, run_id=run_id)
            if plan.work.is_done():
                return broadcast.ended(finish(plan, None, console))
            # Loaded here: a night without news does without what only a working run needs.
            from batchgen.run.execution import Execution

            begin(plan, console)
            execution = Execution(plan, clock, stop, console, broadcast)
            with closing(plan.kept), plan.store:
                execution.run()
            return broadcast.ended(finish(plan, execution.outcome(), console))
