"""What a comparison found: one result for each way, and how results come out of repeated trials.

A result is a median over the repeats of its way, beside the spread of the repeats: a ratio of two
numbers that each vary by a tenth means nothing in its second digit. Repeats of different ways are
taken in turn, so a speed-up is the median of the ratios of trials that ran side by side, per output
token, so that it also holds where a slow way did fewer rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

from batchgen.bench.differences import Differences
from batchgen.bench.step_law import StepLaw, StepPoint, relative_errors
from batchgen.bench.trials import Trial
from batchgen.bench.ways import Way


@dataclass(frozen=True, slots=True)
class WayResult:
    """One way, medians over its repeats. Times in seconds; None: not known, or not meaningful."""

    name: str
    batch_size: int
    arrival_rows_per_s: float | None
    num_repeats: int
    num_rows: int
    num_failed: int
    wall_s: float
    wall_s_spread: float | None
    """(slowest - fastest) ÷ median of the repeats; None for a single one."""
    rows_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    ttft_s_p50: float | None
    ttft_s_p95: float | None
    tpot_s_p50: float | None
    tpot_s_p95: float | None
    latency_s_p50: float | None
    latency_s_p95: float | None
    speedup: float | None
    """Output tokens a second ÷ those of sequential; None with an arrival rate, which sets the
    pace."""
    speedup_min: float | None
    speedup_max: float | None
    roofline_fraction: float | None
    """Least time for this work at this way's concurrency ÷ time that it took."""
    num_running_mean: float | None
    drain_s: float | None
    kv_cache_usage_max: float | None
    num_preemptions: float | None
    num_steps: float
    num_compared: int | None
    """Rows whose text was compared with that of sequential; None: texts vary in any case."""
    num_different: int | None
    num_equal_tokens_median: float | None

    @property
    def way(self) -> Way:
        """The way that this is the result of."""
        return Way(self.name, self.batch_size, self.arrival_rows_per_s)


@dataclass(frozen=True, slots=True)
class Fact:
    """Something measured that says why the gain of batching is what it is."""

    kind: str
    """`asymptote`, `saturation`, `prefill`, `lengths`, `drain`, `kv_cache`, `roofline`, `limit`,
    `dynamic` or `padding`."""
    way: str | None
    """Label of the way that it is about; None: of all."""
    value: float | None
    """Its number: a ratio, a share or a count, as the text says."""
    text: str


@dataclass(frozen=True, slots=True)
class RowsLook:
    """The sample that all ways worked on."""

    num_rows: int
    num_looked_at: int
    num_refused: int
    """Rows looked at that would never reach the engine."""
    num_failed: int
    """Rows that failed in the warm-up and were left out."""
    num_prompt_tokens: int
    prompt_tokens_min: int
    prompt_tokens_max: int
    num_output_tokens: int
    output_tokens_min: int
    output_tokens_max: int
    is_pinned: bool
    """Whether every way gives each row the same number of output tokens."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answer of `batchgen compare`."""

    job: str
    created_at: str
    output_path: str
    exit_code: int
    stopped: str | None
    """Why it ended early, a sentence; None: everything was measured."""
    num_repeats: int
    ways: tuple[WayResult, ...]
    steps: tuple[StepPoint, ...]
    step_context_tokens: float | None
    """Tokens before those that the measured steps decoded, on average."""
    step_law: StepLaw | None
    facts: tuple[Fact, ...]
    differences: Mapping[Way, Differences]
    difference_reason: str | None
    """Why texts differ, or why they were not compared."""
    notes: tuple[str, ...]
    engine: dict[str, Any] | None
    rates_source: str | None
    """Where the machine's rates under the roofline come from."""
    rows: RowsLook | None
    wall_s: float
    trials: Mapping[Way, Sequence[Trial]]
    """What the results are medians of."""

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it and `compare.json` holds it."""
        plain = ("job", "created_at", "output_path", "exit_code", "stopped", "num_repeats")
        return {
            "kind": "compare",
            **{name: getattr(self, name) for name in plain},
            "ways": [asdict(way) for way in self.ways],
            "steps": self._steps(),
            "step_law": self._law(),
            "facts": [asdict(fact) for fact in self.facts],
            "differences": {
                "reason": self.difference_reason,
                "examples": [
                    {"way": way.label, **asdict(example)}
                    for way, found in self.differences.items()
                    for example in found.examples
                ],
            },
            "notes": list(self.notes),
            "engine": self.engine,
            "rates_source": self.rates_source,
            "rows": None if self.rows is None else asdict(self.rows),
            "wall_s": self.wall_s,
        }

    def _steps(self) -> list[dict[str, Any]]:
        law = self.step_law
        errors = [None] * len(self.steps) if law is None else relative_errors(law, self.steps)
        return [
            {
                "num_running": point.num_running,
                "step_s": point.step_s,
                "law_s": None if law is None else law.step_s(point.num_running),
                "error": error,
            }
            for point, error in zip(self.steps, errors, strict=True)
        ]

    def _law(self) -> dict[str, Any] | None:
        law = self.step_law
        if law is None:
            return None
        return {
            **asdict(law),
            "asymptote": law.asymptote,
            "context_tokens": self.step_context_tokens,
        }


MEDIANS = tuple(
    field.name for field in fields(WayResult) if field.name in {f.name for f in fields(Trial)}
)
"""Fields of a result that are medians of the trials' own."""


def way_result(
    way: Way,
    trials: Sequence[Trial],
    sequential: Sequence[Trial],
    *,
    roofline_fraction: float | None,
    differences: Differences | None,
) -> WayResult:
    """The result of one way from the trials of its repeats, at least one.

    `sequential` are the baseline's trials in the order of the same repeats.
    """
    walls = [trial.wall_s for trial in trials]
    ratios = [] if way.arrival_rows_per_s is not None else speedups(trials, sequential)
    values: dict[str, Any] = {name: median_of(trials, name) for name in MEDIANS}
    values |= {name: round(values[name]) for name in ("batch_size", "num_rows", "num_failed")}
    return WayResult(
        **values,
        name=way.name,
        arrival_rows_per_s=way.arrival_rows_per_s,
        num_repeats=len(trials),
        wall_s_spread=spread_of(walls),
        speedup=median(ratios) if ratios else None,
        speedup_min=min(ratios, default=None),
        speedup_max=max(ratios, default=None),
        roofline_fraction=roofline_fraction,
        num_compared=None if differences is None else differences.num_compared,
        num_different=None if differences is None else differences.num_different,
        num_equal_tokens_median=None
        if differences is None
        else differences.num_equal_tokens_median,
    )


def speedups(trials: Sequence[Trial], baseline: Sequence[Trial]) -> list[float]:
    """Ratios of output tokens a second, trial by trial."""
    return [
        trial.output_tokens_per_s / base.output_tokens_per_s
        for trial, base in zip(trials, baseline, strict=False)
    ]


def median_of(trials: Sequence[Trial], name: str) -> float | None:
    """Median of a field over the trials that know it; None where none does."""
    known = [value for trial in trials if (value := getattr(trial, name)) is not None]
    return median(known) if known else None


def spread_of(values: Sequence[float]) -> float | None:
    """(largest - smallest) ÷ median.

    >>> spread_of([2.0, 4.0, 1.0]), spread_of([2.0])
    (1.5, None)
    """
    return (max(values) - min(values)) / median(values) if len(values) > 1 else None
