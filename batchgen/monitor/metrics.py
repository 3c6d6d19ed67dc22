"""A run as Prometheus metrics, in a file for node_exporter's textfile collector.

A batch job is gone before anyone could scrape it, and a dead one cannot answer at all. So it leaves
its numbers in a file that node_exporter reads at every scrape; `node_textfile_mtime_seconds` says
how old they are, which is how a stalled or killed run shows. Metrics named `batchgen_last_*` speak
of earlier runs as well: the next run takes them over from the file that it replaces.

Names, suffixes and escapes follow Prometheus' naming advice and its text format 0.0.4. The label
is `job_name`, since `job` is the scraper's own. What is not known has no sample, never a zero.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from batchgen.monitor.progress import Progress, Snapshot
from batchgen.monitor.progress_file import FINISHING, replace_text

PHASES: Final = (
    "plan",
    "engine start",
    "generate",
    "publish",
    FINISHING,
    "done",
    "stopped",
    "failed",
)
HELP: Final = {
    "batchgen_run_info": "The latest run; always 1.",
    "batchgen_run_phase": "What the run does: 1 for its phase, 0 for the others.",
    "batchgen_run_start_timestamp_seconds": "When the run began.",
    "batchgen_rows_done": "Rows that have their output row, failed ones among them.",
    "batchgen_rows_expected": "Rows that the output will have.",
    "batchgen_rows_expected_is_estimate": "1 where batchgen_rows_expected is told from bytes.",
    "batchgen_rows_failed": "Rows of the output that failed.",
    "batchgen_rows_failed_by_type": "Rows of the output that failed, by their error_type.",
    "batchgen_prompt_tokens_total": "Prompt tokens of the run.",
    "batchgen_output_tokens_total": "Output tokens of the run.",
    "batchgen_rows_per_second": "Rows over the last minute.",
    "batchgen_output_tokens_per_second": "Output tokens over the last minute.",
    "batchgen_eta_seconds": "Time until all rows are done at the present rate.",
    "batchgen_last_completion_timestamp_seconds": "When the engine last finished a row.",
    "batchgen_last_end_timestamp_seconds": "When a run last ended.",
    "batchgen_last_exit_code": "Exit code of the run that ended last.",
    "batchgen_last_success_timestamp_seconds": "When a run last ended with exit code 0.",
}
"""All metrics, in the order of the file. Those named `_total` are counters, the others gauges."""

_LAST: Final = re.compile(r'(batchgen_last_\w+)\{job_name="((?:[^"\\]|\\.)*)"\} (\d+(?:\.\d+)?)')

Labels = Mapping[str, str]
Samples = Iterable[tuple[Labels, float | None]]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run as its metrics show it. Moments are seconds since the epoch; None: not known."""

    info: Labels
    """Texts that describe the run, `job_name` among them."""
    phase: str
    started_at: float
    progress: Progress | None = None
    last_completion_at: float | None = None
    last_end_at: float | None = None
    last_exit_code: float | None = None
    last_success_at: float | None = None

    def samples(self) -> dict[str, Samples]:
        """Samples of each metric, under the names of `HELP`."""
        job = {"job_name": self.info["job_name"]}
        phases = dict.fromkeys((*PHASES, self.phase))
        found: dict[str, Samples] = {
            "batchgen_run_info": [(self.info, 1)],
            "batchgen_run_phase": [
                ({**job, "phase": name}, int(name == self.phase)) for name in phases
            ],
        }
        failed = self.progress.snapshot.failed_by_type if self.progress else {}
        found["batchgen_rows_failed_by_type"] = [
            ({**job, "error_type": name}, failed[name]) for name in sorted(failed)
        ]
        moments = {
            "batchgen_run_start_timestamp_seconds": self.started_at,
            "batchgen_last_completion_timestamp_seconds": self.last_completion_at,
            "batchgen_last_end_timestamp_seconds": self.last_end_at,
            "batchgen_last_exit_code": self.last_exit_code,
            "batchgen_last_success_timestamp_seconds": self.last_success_at,
        }
        numbers = {**moments, **(_numbers(self.progress) if self.progress else {})}
        return found | {name: [(job, value)] for name, value in numbers.items()}


def _numbers(progress: Progress) -> dict[str, float | None]:
    snapshot = progress.snapshot
    return {
        "batchgen_rows_done": snapshot.rows_done,
        "batchgen_rows_expected": snapshot.rows_total,
        "batchgen_rows_expected_is_estimate": (
            None if snapshot.rows_total is None else int(snapshot.total_is_estimate)
        ),
        "batchgen_rows_failed": snapshot.rows_failed,
        "batchgen_prompt_tokens_total": snapshot.num_prompt_tokens,
        "batchgen_output_tokens_total": snapshot.num_output_tokens,
        "batchgen_rows_per_second": progress.rows_per_s,
        "batchgen_output_tokens_per_second": progress.output_tokens_per_s,
        "batchgen_eta_seconds": progress.eta_s,
    }


class MetricsFile:
    """Keeps a textfile up to date with one run. No method raises OSError: it warns, once."""

    def __init__(
        self,
        path: str | Path,
        info: Labels,
        *,
        warn: Callable[[str], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = Path(path)
        self._warn = warn
        self._now = now
        self._has_warned = False
        last = remembered(self._path, info["job_name"])
        self._facts = RunFacts(
            info,
            "plan",
            now(),
            last_completion_at=last.get("batchgen_last_completion_timestamp_seconds"),
            last_end_at=last.get("batchgen_last_end_timestamp_seconds"),
            last_exit_code=last.get("batchgen_last_exit_code"),
            last_success_at=last.get("batchgen_last_success_timestamp_seconds"),
        )

    def begin(self) -> None:
        """The run has begun."""
        self._write()

    def update(self, progress: Progress) -> None:
        """The run is so far."""
        age_s = progress.snapshot.last_completion_age_s
        completed_at = self._facts.last_completion_at if age_s is None else self._now() - age_s
        self._facts = replace(
            self._facts,
            phase=progress.snapshot.phase,
            progress=progress,
            last_completion_at=completed_at,
        )
        self._write()

    def end(self, phase: str, exit_code: int, totals: Snapshot | None) -> None:
        """The run has ended. `totals` None: it never came to its rows, or ended in an error."""
        now = self._now()
        self._facts = replace(
            self._facts,
            phase=phase,
            progress=_at_rest(totals, self._facts.progress),
            last_end_at=now,
            last_exit_code=exit_code,
            last_success_at=self._facts.last_success_at if exit_code else now,
        )
        self._write()

    def _write(self) -> None:
        try:
            replace_text(self._path, exposition(self._facts))
        except OSError as exc:
            if not self._has_warned:
                self._has_warned = True
                self._warn(f"metrics.textfile: {self._path}: cannot be written: {exc.strerror}")


def _at_rest(totals: Snapshot | None, latest: Progress | None) -> Progress | None:
    """Progress without rates: nothing moves any more."""
    snapshot = totals or (latest.snapshot if latest else None)
    return None if snapshot is None else Progress(snapshot, 0.0, None, None, None)


def exposition(facts: RunFacts) -> str:
    """The metrics in Prometheus' text format; one without a known value is left out."""
    samples = facts.samples()
    lines = []
    for name, text in HELP.items():
        known = [(labels, value) for labels, value in samples.get(name, ()) if value is not None]
        if known:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{{{_pairs(labels)}}} {_number(value)}" for labels, value in known]
    return "\n".join(lines) + "\n"


def _pairs(labels: Labels) -> str:
    return ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())


def escaped(text: str) -> str:
    """A label value; what is no valid Unicode is replaced.

    >>> print(escaped('a "b"'))
    a \\"b\\"
    """
    valid = text.encode("utf-8", "replace").decode()
    return valid.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    """Whole numbers as such, all else to the microsecond."""
    return str(int(value)) if value == int(value) else f"{value:.6f}"


def remembered(path: Path, job_name: str) -> dict[str, float]:
    """What an earlier run of this job has left under `batchgen_last_*`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return {}
    found = (_LAST.fullmatch(line) for line in text.split("\n"))
    name = escaped(job_name)
    return {match[1]: float(match[3]) for match in found if match and match[2] == name}
