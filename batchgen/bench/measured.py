"""What a comparison asks for, and what it has measured so far."""

from dataclasses import dataclass, field
from statistics import mean, median

from batchgen.bench.comparison import Fact, RowsLook
from batchgen.bench.dynamic import Gaps
from batchgen.bench.step_law import StepPoint
from batchgen.bench.trials import Trial
from batchgen.bench.ways import Way
from batchgen.bench.workload import Workload
from batchgen.protocols import Tokenizer
from batchgen.records import EngineInfo


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """How a comparison is made."""

    num_rows: int = 64
    num_repeats: int = 3
    sizes: tuple[int, ...] | None = None
    """Rows of a call and rows in flight; None: up to the slots and the rows."""
    arrival_rows_per_s: float | None = None
    """Also replay rows that arrive at this rate; None: no."""
    gaps: Gaps = "exponential"
    max_wait_s: float = 0.5
    """Time-out of a dynamic batch."""
    static: bool = True
    free_lengths: bool = False
    """Let every row end where it wants to."""
    max_minutes: float = 30.0
    """Time to stay below; the slowest ways get fewer rows for it."""


@dataclass(slots=True)
class Measured:
    """Filled as a comparison goes on; complete or not, a result can be made of it."""

    info: EngineInfo | None = None
    tokenizer: Tokenizer | None = None
    workload: Workload = field(default_factory=lambda: Workload((), 0, 0))
    """The rows that all ways work on, their lengths pinned unless they are to be free."""
    lengths: tuple[int, ...] = ()
    """Output tokens of a completion of each row."""
    is_pinned: bool = False
    num_failed: int = 0
    """Rows that failed in the warm-up and were left out."""
    sizes: tuple[int, ...] = ()
    step_tokens: int | None = None
    """Output tokens of the rows whose steps are timed; None: there is no room for enough."""
    steps: dict[int, list[float]] = field(default_factory=dict)
    """Seconds of a decode step by number of sequences, one of each repeat."""
    trials: dict[Way, list[Trial]] = field(default_factory=dict)
    """In the order of the repeats."""
    closed: dict[Way, tuple[int, int]] = field(default_factory=dict)
    """Dynamic batches closed by size and by time-out, of the last repeat."""
    facts: list[Fact] = field(default_factory=list)
    """Those that cannot be told from the results."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know: what was left out or cut, and why."""

    @property
    def num_each(self) -> int:
        """Completions of a row."""
        return self.workload.prompts[0].sampling.n

    @property
    def prompt_lengths(self) -> list[int]:
        """Prompt tokens of each row."""
        return [len(prompt.token_ids) for prompt in self.workload.prompts]

    @property
    def points(self) -> tuple[StepPoint, ...]:
        """Decode steps, medians over the repeats."""
        return tuple(StepPoint(n, median(times)) for n, times in sorted(self.steps.items()))

    @property
    def step_context(self) -> float | None:
        """Tokens before those that the timed steps decoded, on average."""
        if not self.steps or self.step_tokens is None:
            return None
        return mean(self.prompt_lengths) + self.step_tokens / 2

    def look(self) -> RowsLook | None:
        """The sample in numbers; None before the warm-up has ended."""
        if not self.lengths:
            return None
        prompts = self.prompt_lengths
        return RowsLook(
            num_rows=len(prompts),
            num_looked_at=self.workload.num_looked_at,
            num_refused=self.workload.num_refused,
            num_failed=self.num_failed,
            num_prompt_tokens=sum(prompts),
            prompt_tokens_min=min(prompts),
            prompt_tokens_max=max(prompts),
            num_output_tokens=sum(self.lengths) * self.num_each,
            output_tokens_min=min(self.lengths),
            output_tokens_max=max(self.lengths),
            is_pinned=self.is_pinned,
        )
