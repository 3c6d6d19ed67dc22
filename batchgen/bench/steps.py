"""How long a decode step takes with n sequences in it, measured and not derived.

A whole batch tells it badly: its prompts are computed in the same steps, and it thins out as rows
finish. So n rows get equally many output tokens, in one call, and a row is looked at while it
decodes beside all the others: from the first token of the row that starts last, to its last one.
"""

from collections.abc import Sequence
from typing import Final

from batchgen.bench.step_law import StepPoint
from batchgen.bench.trials import Trial, run_generate
from batchgen.bench.workload import Workload
from batchgen.protocols import Engine
from batchgen.records import Completion

STEP_TOKENS: Final = 24
"""Output tokens of each row: 23 decode steps, whose mean is one measurement."""
LEAST_TOKENS: Final = 8
LEAST_OVERLAP: Final = 0.5
"""Of the steps looked at, the share in which all rows have to be decoding."""


def step_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """One sequence, the sizes of the comparison, and the powers of two below the largest of them.

    >>> step_sizes([4, 24])
    (1, 2, 4, 8, 16, 24)
    """
    largest = max(sizes, default=1)
    powers = (2**exponent for exponent in range(largest.bit_length()))
    return tuple(sorted({size for size in (*powers, *sizes) if size <= largest}))


def step_tokens(workload: Workload, max_model_len: int) -> int | None:
    """Output tokens that every row of the sample has room for; None: too few to tell a step."""
    longest = max(len(prompt.token_ids) for prompt in workload.prompts)
    tokens = min(STEP_TOKENS, max_model_len - longest)
    return tokens if tokens >= LEAST_TOKENS else None


def measure_steps(
    engine: Engine, workload: Workload, sizes: Sequence[int], num_tokens: int
) -> list[tuple[StepPoint, Trial]]:
    """A point for each size at which all sequences could decode beside each other."""
    found = []
    for size in sizes:
        rows = workload.spread(size).pinned([num_tokens] * size)
        trial = run_generate(engine, rows, size)
        point = step_point(trial)
        if point is not None:
            found.append((point, trial))
    return found


def step_point(trial: Trial) -> StepPoint | None:
    """The step of a call with equally long rows; None where they did not decode side by side.

    That is so where the KV cache or the slots had no room for all of them, and where the engine
    does not tell its times.
    """
    completions = [row.completion for row in trial.rows]
    decoding = [span for c in completions if (span := _decoding(c)) is not None]
    if not completions or len(decoding) < len(completions):
        return None
    began, ended = max(decoding)
    all_until = min(end for _, end in decoding)
    if ended <= began or all_until - began < LEAST_OVERLAP * (ended - began):
        return None
    num_steps = max(sample.num_tokens for c in completions for sample in c.samples) - 1
    num_running = sum(len(c.samples) for c in completions)
    return StepPoint(num_running, (ended - began) / num_steps)


def _decoding(completion: Completion) -> tuple[float, float] | None:
    """First and last token of a row on the engine's clock."""
    ended, latency_s, ttft_s = completion.finished_at, completion.latency_s, completion.ttft_s
    if ended is None or latency_s is None or ttft_s is None or not completion.samples:
        return None
    return ended - (latency_s - ttft_s), ended
