"""How a run went: totals of the output directory, what this execution added, and the exit code."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from batchgen.errors import BatchgenError, ErrorBudgetExceeded


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The result of `run_job`; `batchgen run --json` prints these fields under the same names.

    `num_*` fields up to `num_invalid_json` describe the whole output, `*_this_run`, tokens, rates
    and seconds this execution alone. Rates are per second of `generate_s`, the time from the first
    row entering the engine to the last one finished.
    """

    output_path: str
    outputs: str
    batches: str
    run_id: str
    exit_code: int
    stopped: str | None
    """Why the run ended early, as a sentence; None when it came to its end."""
    nothing_new: bool
    num_rows: int
    num_ok: int
    num_failed: int
    failed_by_type: Mapping[str, int]
    finish_reasons: Mapping[str, int]
    num_duplicates: int
    num_cut: int
    """Rows that ended at a token limit (`finish_reason` length)."""
    num_invalid_json: int | None
    rows_this_run: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int | None
    wall_s: float
    generate_s: float
    rows_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    blank_lines: int
    skipped_lines: int
    num_stale: int
    """Completions that belonged to no waiting row and were dropped."""
    engine_restarts: int
    warnings: tuple[str, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each phase: plan, tokenizer, engine_start, generate, publish."""
    engine: Mapping[str, Any] | None = None
    samples: tuple[Mapping[str, Any], ...] = ()
    """Up to two outputs: `shard`, `row`, `output`."""
    stopped_early: Mapping[str, int] | None = None
    """Rows that a rule of `stop_early` stopped, by rule, copies left out; None without rules."""
    num_saved_tokens_max: int | None = None
    """Output tokens that these rows could still have had; most would have ended earlier."""
    roofline_s: float | None = None
    """Least time that this machine needs for the work of this execution; None: not known."""
    roofline_fraction: float | None = None
    """`roofline_s` ÷ `generate_s`."""
    roofline_source: str | None = None
    """The rates of the machine, and where they come from."""
    diagnosis: tuple[Mapping[str, Any], ...] = ()
    """What limited this execution, the most important first: `kind`, `summary`, `evidence`,
    `remedy`, `share`."""

    def to_dict(self) -> dict[str, Any]:
        """All fields, under their names."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def raise_for_exit_code(self) -> None:
        """Raise ErrorBudgetExceeded or BatchgenError where the command line would not exit 0."""
        if self.exit_code == ErrorBudgetExceeded.exit_code:
            raise ErrorBudgetExceeded(
                self.stopped or f"{self.num_failed} of {self.num_rows} rows failed"
            )
        if self.exit_code:
            raise BatchgenError(self.stopped or f"the run ended with exit code {self.exit_code}")
