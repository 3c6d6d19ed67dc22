"""The nouns of a report: one tree of plain values, of which every picture of it is drawn.

HTML, terminal and JSON show the same `Report`, so they cannot disagree. Times are seconds, shares
are 0 to 1, rates are per second of generation; what is not known is None, never zero.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from batchgen.stats.batch import BatchRecord


@dataclass(frozen=True, slots=True)
class Summary:
    """The output as it is now, and what all runs together took to make it."""

    num_rows: int
    num_ok: int
    num_failed: int
    num_duplicates: int
    num_cut: int
    num_invalid_json: int | None
    rows_total: int | None
    """Input rows; None where nothing says how many there are."""
    total_is_estimate: bool
    eta_s: float | None
    """Only while it runs."""
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int | None
    num_runs: int
    num_batches: int
    wall_s: float | None
    """Of the runs that came to an orderly end."""
    generate_s: float | None
    engine_s: float | None
    """Start of the engine and generation: how long it held its device."""
    rows_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    slots: int | None
    """Sequences that the engines decode at once; None where that is not the same for all runs."""
    num_running_mean: float | None
    drain_s: float | None
    kv_cache_usage_max: float | None
    num_preemptions: int | None
    roofline_fraction: float | None
    """Of the newest run: what arithmetic and memory would need at least ÷ what it took."""


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run of the job, from the manifest; of one without an end, from its batches."""

    run_id: str
    started_at: str
    ended_at: str | None
    status: str
    """`running`, `done`, `stopped` or `killed`."""
    stopped: str | None
    exit_code: int | None
    feed: str | None
    batch_size: int | None
    num_rows: int | None
    num_prompt_tokens: int | None
    num_output_tokens: int | None
    num_cached_tokens: int | None
    num_batches: int
    wall_s: float | None
    generate_s: float | None
    engine_s: float | None
    rows_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    slots: int | None
    num_running_mean: float | None
    kv_cache_usage_max: float | None
    engine_restarts: int | None
    roofline_fraction: float | None
    roofline_s: float | None
    warnings: tuple[str, ...]
    settings: Mapping[str, Any]
    """What may decide how fast it was, by dotted name."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of two runs."""

    name: str
    before: float | None
    after: float | None
    ratio: float | None
    """`after` ÷ `before`."""


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that two runs do not share; None: the run does not have it."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """The newest run beside the one before it."""

    run_id: str
    before_run_id: str
    verdict: str
    """`slower`, `faster` or `equal`, by output tokens per second (rows where there are none)."""
    summary: str
    """The same as a sentence."""
    measures: tuple[Measure, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """A quantity over the seconds of generation, the runs joined end to end.

    Values belong to the stretches between neighboring `edges_s`. A thinned curve has one stretch
    for several batches, hence three values of each; None where nothing was observed.
    """

    name: str
    is_thinned: bool
    edges_s: tuple[float, ...]
    mean: tuple[float | None, ...]
    min: tuple[float | None, ...]
    max: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """How a column of the outputs is distributed, over rows that an engine completed."""

    name: str
    num_values: int
    mean: float
    min: float
    p50: float
    p95: float
    p99: float
    max: float
    is_log: bool
    """Whether the bins have equal ratios instead of equal widths."""
    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """One row, with its error or its output."""

    shard: str
    row: int
    text: str


@dataclass(frozen=True, slots=True)
class Failures:
    """The failed rows of one type."""

    error_type: str
    meaning: str | None
    """What the type says of a row; None for one that this version does not know."""
    is_retryable: bool
    num_rows: int
    share: float
    """Of all rows."""
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """Completions that ended for one reason, and one of them."""

    reason: str
    num_completions: int
    share: float
    example: Example | None


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """What shared beginnings and equal prompts saved."""

    num_prompt_tokens: int
    num_cached_tokens: int | None
    cached_share: float | None
    kv_block_tokens: int | None
    num_duplicates: int


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """What the rules of `stop_early` did, over the whole output."""

    rules: Mapping[str, Any]
    """As the newest run's job has them."""
    num_rows: int
    """Rows that a rule has stopped, copies of such rows included."""
    by_rule: Mapping[str, int]
    num_saved_tokens_max: int | None
    """Output tokens that the stopped rows had left to their limits."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One limit that was met (`batchgen.stats.diagnosis.Verdict`), and what helps."""

    kind: str
    summary: str
    evidence: str
    remedy: str
    share: float | None


@dataclass(frozen=True, slots=True)
class Cost:
    """What the output cost at a price per hour of what one engine runs on."""

    price_per_hour: float
    engine_s: float
    cost: float
    cost_per_1000_rows: float | None
    cost_per_million_output_tokens: float | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """A result of `batchgen compare` or `batchgen tune` that lies in the directory."""

    kind: str
    created_at: str | None
    points: tuple[Mapping[str, Any], ...]
    """The ways of `compare`, the concurrencies of `tune`, with the keys that they have there."""
    steps: tuple[Mapping[str, Any], ...]
    """Measured decode steps: `num_running`, `step_s`."""
    step_law: Mapping[str, float] | None
    """`a_s`, `b_s`: a step with n sequences takes a + b·n seconds."""
    recommended: Mapping[str, Any] | None
    overrides: tuple[str, ...]
    """What is recommended as `-s` takes it."""
    remarks: tuple[str, ...]
    """What the result says of itself, sentences."""


@dataclass(frozen=True, slots=True)
class Input:
    """One shard."""

    name: str
    format: str | None
    num_bytes: int | None
    num_rows: int | None


@dataclass(frozen=True, slots=True)
class Provenance:
    """What the outputs were made of and with."""

    created_at: str | None
    versions: Mapping[str, str]
    engine: Mapping[str, Any] | None
    seed: int | None
    template_digest: str | None
    num_inputs: int
    input_bytes: int
    inputs: tuple[Input, ...]
    """The first ones."""
    job: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is shown of a run directory."""

    path: str
    name: str
    state: str
    """`running`, `done`, `stopped` or `killed`."""
    generated_at: str
    batchgen_version: str
    summary: Summary
    findings: tuple[Finding, ...]
    comparison: Comparison | None
    runs: tuple[RunLine, ...]
    """The newest last; `summary.num_runs` counts those that are left out, too."""
    run_starts_s: tuple[float, ...]
    """Where on the curves' axis each run but the first begins."""
    curves: tuple[Curve, ...]
    distributions: tuple[Distribution, ...]
    finishes: tuple[Finish, ...]
    failures: tuple[Failures, ...]
    prefix_cache: PrefixCache
    early_stop: EarlyStop | None
    """None where no rule is set and none has stopped a row."""
    cost: Cost | None
    sweeps: tuple[Sweep, ...]
    batches: tuple[BatchRecord, ...]
    """By batch id; of many only the first, the last and the slowest."""
    provenance: Provenance
    notes: tuple[str, ...]
    """What could not be read or is left out, sentences."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `batchgen report --json` prints them."""
        return asdict(self)

    def curve(self, name: str) -> Curve | None:
        """The curve of this quantity, if it was observed."""
        return next((curve for curve in self.curves if curve.name == name), None)

    def distribution(self, name: str) -> Distribution | None:
        """The distribution of this column, if there are values."""
        return next((item for item in self.distributions if item.name == name), None)
