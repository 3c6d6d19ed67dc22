"""What the world outside hears of a run: pings and a webhook, metrics, the end of `progress.json`.

A run is spoken of from the moment at which it holds the lock until its end, whichever end that is:
a summary, an error, an engine that hangs beyond rescue. What fails before the lock (no input, no
permission) is told as well, since that is what a cron job dies of; but not that another run holds
the lock, for that one speaks for both. A second signal, `kill -9` and a power cut end the process
where it stands; their silence is what a dead man's switch listens for.

Nothing here can fail a run, or keep it longer than `notify.timeout` allows.
"""

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from batchgen import __version__
from batchgen.config.masking import masked
from batchgen.config.models import JobConfig
from batchgen.errors import BatchgenError, EngineError, ErrorBudgetExceeded, RunLocked
from batchgen.monitor.console import Console
from batchgen.monitor.logs import LOGGER_NAME
from batchgen.monitor.metrics import MetricsFile
from batchgen.monitor.notify import Notifier
from batchgen.monitor.progress import Progress, Snapshot
from batchgen.monitor.progress_file import ROW_KEYS, close_progress, run_identity
from batchgen.output.layout import RunLayout
from batchgen.run.stop import StopRun
from batchgen.run.summary import RunSummary

logger = logging.getLogger(LOGGER_NAME)


class Broadcast:
    """A context manager around a run; `working` is one around the part that holds the lock."""

    def __init__(self, job: JobConfig, run_id: str, console: Console) -> None:
        self._job = job
        self._run_id = run_id
        self._identity = run_identity(run_id)
        self._console = console
        self._notifier = Notifier(job.notify, console.warn)
        self._metrics: MetricsFile | None = None
        self._layout: RunLayout | None = None
        self._has_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None and not isinstance(exc, RunLocked):
            self._failed(exit_code_of(exc), problems_of(exc))

    @contextmanager
    def working(self, layout: RunLayout) -> Iterator[None]:
        """The run holds the lock. An error is told before it leaves lock and log file behind."""
        self._layout = layout
        with self._harmless():
            host = socket.gethostname()
            text = f"{self._job.name}: started on {host}, run {self._run_id}"
            logger.info("%s, process %d, batchgen %s", text, os.getpid(), __version__)
            self._notifier.start(text)
            self._metrics = self._open_metrics()
            if self._metrics is not None:
                self._metrics.begin()
        with self:
            yield

    def progressed(self, progress: Progress) -> None:
        """The run is so far. Called each second by the clock's thread."""
        if self._metrics is not None:
            self._metrics.update(progress)

    def ended(self, summary: RunSummary) -> RunSummary:
        """The run has come to an orderly end, early or not; the same summary."""
        is_complete = self._layout is not None and self._layout.success.exists()
        self._tell(
            _End(
                phase="stopped" if summary.stopped else "done",
                exit_code=summary.exit_code,
                reason=_reason(summary),
                text=_headline(self._job.name, summary),
                details=_without_samples(summary),
                totals=None if summary.stopped else _totals(summary, is_complete=is_complete),
            )
        )
        return summary

    def gave_up(self, reason: str) -> None:
        """The engine hangs and the process is about to end. Called by the clock's thread."""
        self._failed(EngineError.exit_code, (reason,))

    def _failed(self, exit_code: int, problems: Sequence[str]) -> None:
        shown: list[str] = masked(list(problems))
        reason = "; ".join(map(str.strip, shown))
        self._tell(
            _End(
                phase="failed",
                exit_code=exit_code,
                reason=reason,
                text=f"{self._job.name}: exit code {exit_code}: {reason}",
                details={"run_id": self._run_id, "exit_code": exit_code, "error": shown},
            )
        )

    def _tell(self, end: "_End") -> None:
        """Tell everyone, each whether or not the one before could be told; only once a run."""
        if self._has_ended:
            return
        self._has_ended = True
        logger.info("%s", end.text)
        for tell in (self._close_progress, self._end_metrics, self._notify):
            with self._harmless():
                tell(end)

    def _close_progress(self, end: "_End") -> None:
        if self._layout is None:
            return
        totals = end.totals
        with suppress(OSError):  # a disk that cannot take it has been warned of
            close_progress(
                self._layout.progress,
                self._identity,
                phase=end.phase,
                exit_code=end.exit_code,
                reason=end.reason,
                rows=None if totals is None else {key: getattr(totals, key) for key in ROW_KEYS},
            )

    def _end_metrics(self, end: "_End") -> None:
        self._metrics = self._metrics or self._open_metrics()
        if self._metrics is not None:
            self._metrics.end(end.phase, end.exit_code, end.totals)

    def _notify(self, end: "_End") -> None:
        host = socket.gethostname()
        body = f"{end.text}\nrun {self._run_id} on {host}, output in {self._job.output.path}\n"
        summary = {"text": end.text, "job": self._job.name, "host": host, **end.details}
        self._notifier.end(end.exit_code, body, summary)

    def _open_metrics(self) -> MetricsFile | None:
        job = self._job
        if job.metrics.textfile is None:
            return None
        info = {
            "job_name": job.name,
            "run_id": self._run_id,
            "model": str(masked(job.model.name)),
            "engine": job.model.engine,
            "version": __version__,
        }
        return MetricsFile(job.metrics.textfile, info, warn=self._console.warn)

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        try:
            yield
        except Exception as exc:  # noqa: BLE001  (whatever it is, the run's own end matters more)
            self._console.warn(f"could not tell how the run goes: {type(exc).__name__}: {exc}")


@dataclass(frozen=True, slots=True)
class _End:
    """How a run ended, for everyone who is told."""

    phase: str
    exit_code: int
    reason: str | None
    """Why the exit code is not 0."""
    text: str
    """All of it in one line."""
    details: Mapping[str, Any]
    """What a webhook gets beside the text."""
    totals: Snapshot | None = None
    """The whole output; None where the latest progress knows it as well."""


def exit_code_of(exc: BaseException) -> int:
    """What the command line ends with for this exception."""
    if isinstance(exc, BatchgenError | StopRun):
        return exc.exit_code
    return 130 if isinstance(exc, KeyboardInterrupt) else 1


def problems_of(exc: BaseException) -> Sequence[str]:
    """An exception in sentences."""
    if isinstance(exc, BatchgenError):
        return exc.problems
    return (f"unexpected {type(exc).__name__}: {exc}".replace("\n", " "),)


def _reason(summary: RunSummary) -> str | None:
    """Why the exit code is not 0; None where it is."""
    if summary.stopped:
        return summary.stopped
    if summary.exit_code != ErrorBudgetExceeded.exit_code:
        return None
    rows = f"{summary.num_failed:,} of {summary.num_rows:,} rows failed"
    return f"{rows}, more than errors.max_failed allows"


def _headline(job_name: str, summary: RunSummary) -> str:
    reason = _reason(summary)
    words = [f"exit code {summary.exit_code}: {reason}"] if reason else ["done"]
    if summary.nothing_new:
        words.append("nothing new")
    elif summary.output_tokens_per_s is not None:
        words.append(f"{summary.rows_this_run:,} rows in {summary.generate_s:,.0f} s")
        words.append(f"{summary.output_tokens_per_s:,.0f} output tokens/s")
    words.append(f"{summary.num_rows:,} rows in all, {summary.num_failed:,} failed")
    return f"{job_name}: {'; '.join(words)}"


def _without_samples(summary: RunSummary) -> dict[str, Any]:
    """For a webhook, to which no text of the corpus belongs."""
    return {name: value for name, value in summary.to_dict().items() if name != "samples"}


def _totals(summary: RunSummary, *, is_complete: bool) -> Snapshot:
    return Snapshot(
        phase="done",
        rows_done=summary.num_rows,
        rows_total=summary.num_rows if is_complete else None,
        rows_failed=summary.num_failed,
        failed_by_type=summary.failed_by_type,
        num_prompt_tokens=summary.num_prompt_tokens,
        num_output_tokens=summary.num_output_tokens,
    )
