"""How far a run is: a bar on a terminal, whole lines on a clock elsewhere, and `progress.json`.

Everything here is driven by time, never by completions. A bar that moves when a row finishes is
silent for exactly as long as something is wrong; a line each minute shows a stall by the age of
the last completion that stands in it. The run gives a `Snapshot` of counters whenever it is
asked; the reporter samples them each second, derives the rates of the last minute and the
time that is left, and publishes the same numbers in all three places.
"""

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

from batchgen.monitor.console import Console
from batchgen.monitor.progress_file import FINISHING, replace_text, run_identity, utc_now
from batchgen.protocols import Clock

if TYPE_CHECKING:
    from tqdm import tqdm

LINE_PERIOD_S: Final = 60.0
SAMPLE_PERIOD_S: Final = 1.0
REDRAW_PERIOD_S: Final = 0.5
RATE_SPAN_S: Final = 60.0
STALL_S: Final = 15.0
DEFAULT_COLUMNS: Final = 80
DEFAULT_LINES: Final = 24


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counters of a run at one moment, all cheap to read."""

    phase: str
    """What the run is doing: `plan`, `engine start`, `generate`, `publish` ..."""
    rows_done: int = 0
    """Rows that have their output row, those of earlier runs included."""
    rows_total: int | None = None
    total_is_estimate: bool = False
    rows_failed: int = 0
    failed_by_type: Mapping[str, int] = field(default_factory=dict)
    num_prompt_tokens: int = 0
    """Of this run, as is `num_output_tokens`."""
    num_output_tokens: int = 0
    last_completion_age_s: float | None = None
    """Seconds since a completion came back; None before the first."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A snapshot with what follows from its predecessors; the content of `progress.json`."""

    snapshot: Snapshot
    elapsed_s: float
    rows_per_s: float | None
    """Over the last minute; None before there are two samples."""
    output_tokens_per_s: float | None
    eta_s: float | None
    """Seconds until all rows are done at `rows_per_s`; None when unknown."""

    def fields(self) -> dict[str, Any]:
        """All numbers in one flat object."""
        numbers = {item.name: getattr(self.snapshot, item.name) for item in fields(Snapshot)}
        numbers["failed_by_type"] = dict(self.snapshot.failed_by_type)
        for name in ("elapsed_s", "rows_per_s", "output_tokens_per_s", "eta_s"):
            numbers[name] = getattr(self, name)
        return numbers


class RateWindow:
    """Samples of the last minute, and the rates between the oldest and the newest of them."""

    def __init__(self, span_s: float = RATE_SPAN_S) -> None:
        self._span_s = span_s
        self._samples: deque[tuple[float, int, int]] = deque()

    def add(self, now: float, rows: int, output_tokens: int) -> None:
        """Remember the counters at `now`."""
        self._samples.append((now, rows, output_tokens))
        while len(self._samples) > 2 and self._samples[1][0] <= now - self._span_s:
            self._samples.popleft()

    def rates(self) -> tuple[float | None, float | None]:
        """Rows and output tokens per second; None while there is nothing to compare."""
        if len(self._samples) < 2:
            return None, None
        (then, rows, tokens), (now, rows_now, tokens_now) = self._samples[0], self._samples[-1]
        if now <= then:
            return None, None
        return (rows_now - rows) / (now - then), (tokens_now - tokens) / (now - then)


class ProgressReporter:
    """Tells `console` and `progress_path` how far a run is, from `start` to `stop`.

    `take` is called from the clock's thread and must be quick, and so must `on_sample`, which gets
    what was derived of it each second. A full disk never ends a run because of this file: a failed
    write is warned of once.
    """

    def __init__(
        self,
        clock: Clock,
        take: Callable[[], Snapshot],
        *,
        console: Console,
        progress_path: Path | None,
        run_id: str,
        period_s: float = LINE_PERIOD_S,
        on_sample: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self._clock = clock
        self._take = take
        self._console = console
        self._path = progress_path
        self._period_s = period_s
        self._on_sample = on_sample
        self._identity = run_identity(run_id)
        self._window = RateWindow()
        self._lock = threading.RLock()
        self._cancels: list[Callable[[], None]] = []
        self._bar: tqdm[Any] | None = None
        self._started_s = clock.now()
        self._is_open = False
        self._write_failed = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop(FINISHING)

    def start(self) -> None:
        """Begin: the first `progress.json`, and the clock's calls from here on."""
        self._is_open = True
        self._sample()
        self._cancels.append(self._clock.every(SAMPLE_PERIOD_S, self._sample))
        if self._console.quiet:
            return
        if self._console.is_terminal:
            self._open_bar()
            self._cancels.append(self._clock.every(REDRAW_PERIOD_S, self._redraw))
        else:
            self._cancels.append(self._clock.every(self._period_s, self._print_line))

    def stop(self, phase: str = "done") -> None:
        """End: no call after this one writes anything. `phase` is what `progress.json` keeps."""
        for cancel in self._cancels:
            cancel()
        with self._lock:
            if not self._is_open:
                return
            progress = self._progress()
            self._write(progress, phase)
            self._on_sample(progress)
            self._is_open = False
            if self._bar is not None:
                self._redraw_bar(self._bar, self._progress())
                self._console.write_through(None)
                self._bar.close()
                self._bar = None

    def _progress(self) -> Progress:
        now = self._clock.now()
        snapshot = self._take()
        self._window.add(now, snapshot.rows_done, snapshot.num_output_tokens)
        rows_per_s, output_tokens_per_s = self._window.rates()
        return Progress(
            snapshot=snapshot,
            elapsed_s=round(now - self._started_s, 3),
            rows_per_s=rows_per_s,
            output_tokens_per_s=output_tokens_per_s,
            eta_s=_eta_s(snapshot, rows_per_s),
        )

    def _sample(self) -> None:
        with self._lock:
            if self._is_open:
                progress = self._progress()
                self._write(progress)
                self._on_sample(progress)

    def _print_line(self) -> None:
        with self._lock:
            if self._is_open:
                progress = self._progress()
                self._console.progress(progress_line(progress), progress.fields())

    def _write(self, progress: Progress, phase: str | None = None) -> None:
        if self._path is None:
            return
        document = {**self._identity, "updated_at": utc_now(), **progress.fields()}
        if phase is not None:
            document["phase"] = phase
        try:
            replace_text(self._path, json.dumps(document, indent=1) + "\n")
        except OSError as exc:
            if not self._write_failed:
                self._write_failed = True
                self._console.warn(f"{self._path}: progress cannot be saved: {exc.strerror}")

    def _open_bar(self) -> None:
        from tqdm import tqdm

        class Bar(tqdm):  # type: ignore[type-arg]
            # The clock redraws; tqdm's own monitor thread is not needed.
            monitor_interval = 0

        has_width = _has_width(self._console.stream)
        snapshot = self._take()
        self._bar = Bar(
            desc=f"{snapshot.phase} ",
            total=snapshot.rows_total,
            initial=snapshot.rows_done,
            file=self._console.stream,
            dynamic_ncols=has_width,
            ncols=None if has_width else DEFAULT_COLUMNS,
            nrows=None if has_width else DEFAULT_LINES,
            bar_format="{desc}{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}",
        )
        self._console.write_through(self._write_above_bar)
        self._redraw()

    def _write_above_bar(self, text: str) -> None:
        with self._lock:
            if self._bar is not None:
                self._bar.write(text, file=self._console.stream)

    def _redraw(self) -> None:
        with self._lock:
            if self._bar is not None:
                self._redraw_bar(self._bar, self._progress())

    @staticmethod
    def _redraw_bar(bar: "tqdm[Any]", progress: Progress) -> None:
        snapshot = progress.snapshot
        bar.n = snapshot.rows_done
        bar.total = snapshot.rows_total
        bar.set_description_str(f"{snapshot.phase} ", refresh=False)
        bar.set_postfix_str("; ".join(_short_details(progress)), refresh=False)
        bar.refresh()


def progress_line(progress: Progress) -> str:
    """One whole line about a run: rows, failures, rates, time left, age of the last completion."""
    snapshot = progress.snapshot
    head = f"progress {duration(progress.elapsed_s)}: "
    if snapshot.phase != "generate":
        head += f"{snapshot.phase}; "
    return head + "; ".join([_rows(snapshot), *_details(progress)])


def duration(seconds: float) -> str:
    """`hh:mm:ss`, hours unlimited.

    >>> duration(90061)
    '25:01:01'
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{rest:02d}"


def _rows(snapshot: Snapshot) -> str:
    if snapshot.rows_total is None:
        return f"{snapshot.rows_done:,} rows"
    about = "about " if snapshot.total_is_estimate else ""
    share = f" ({snapshot.rows_done / snapshot.rows_total:.1%})" if snapshot.rows_total else ""
    return f"{snapshot.rows_done:,} of {about}{snapshot.rows_total:,} rows{share}"


def _details(progress: Progress) -> list[str]:
    snapshot = progress.snapshot
    details = []
    if snapshot.rows_failed:
        details.append(f"{snapshot.rows_failed:,} failed")
    if progress.output_tokens_per_s is not None and progress.rows_per_s is not None:
        details.append(f"{progress.output_tokens_per_s:,.0f} output tokens/s")
        details.append(f"{progress.rows_per_s:,.2f} rows/s")
    if progress.eta_s is not None:
        details.append(f"ETA {duration(progress.eta_s)}")
    if snapshot.last_completion_age_s is not None:
        details.append(f"last completion {snapshot.last_completion_age_s:,.0f} s ago")
    elif snapshot.phase == "generate":
        details.append("no completion yet")
    return details


def _short_details(progress: Progress) -> list[str]:
    """What fits beside a bar on 80 columns; the age of the last completion once it is a stall."""
    snapshot = progress.snapshot
    details = []
    if snapshot.rows_failed:
        details.append(f"{snapshot.rows_failed:,} failed")
    if progress.output_tokens_per_s is not None:
        details.append(f"{progress.output_tokens_per_s:,.0f} tokens/s")
    if progress.eta_s is not None:
        details.append(f"ETA {duration(progress.eta_s)}")
    age_s = snapshot.last_completion_age_s
    if age_s is not None and age_s >= STALL_S:
        details.append(f"last completion {age_s:,.0f} s ago")
    return details


def _eta_s(snapshot: Snapshot, rows_per_s: float | None) -> float | None:
    if snapshot.rows_total is None or not rows_per_s:
        return None
    return max(0, snapshot.rows_total - snapshot.rows_done) / rows_per_s


def _has_width(stream: TextIO) -> bool:
    """Whether the terminal tells how wide it is; some claim to have no columns at all."""
    try:
        return os.get_terminal_size(stream.fileno()).columns > 0
    except OSError:
        return False
