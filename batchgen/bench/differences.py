"""Rows whose text depends on the way in which they were generated: counted, and explained.

With greedy sampling, or with a seed for each row, a row should say the same whatever runs beside
it. It nearly does. Floating-point addition is not associative, and which order the sums of a matrix
product are taken in depends on the shape of the batch. So the last bits of the logits differ, and
where two tokens are nearly equally likely the other one may win. From that token on the text is
another one, neither better nor worse. Both texts are the model's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median
from typing import Final

from batchgen.bench.sweep_rows import common_start
from batchgen.bench.trials import Finished
from batchgen.protocols import Tokenizer
from batchgen.records import Prompt, RowKey

EXPLANATION: Final = (
    "The shape of a batch changes the order of floating-point sums, and with it the last bits of"
    " the logits; where two tokens are nearly equally likely the other one wins, and the text goes"
    " on from there. Neither text is wrong. On GPUs that support it, VLLM_BATCH_INVARIANT=1 makes"
    " them equal, at some cost."
)
OTHER_KERNELS: Final = (
    "transformers computes with other kernels than vLLM, which changes the last bits of the logits"
    " in the same way"
)
NOT_COMPARED: Final = (
    "sampling is random and sampling.seed is not set, so texts differ each time in any case"
)
EXCERPT_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """A row with two texts, and where they part."""

    shard: str
    row: int
    num_equal_tokens: int
    """Tokens before the first differing one, counted by tokenizing both texts again."""
    reference: str
    """The reference's text from there on, shortened."""
    text: str
    """The other one, likewise."""


@dataclass(frozen=True, slots=True)
class Differences:
    """One way's texts against those of the reference."""

    num_compared: int
    num_different: int
    num_equal_tokens_median: float | None
    """Of the rows that differ, tokens before the first differing one; None where none differs."""
    examples: tuple[Difference, ...]
    """The rows that part first come first."""


def is_repeatable(prompt: Prompt) -> bool:
    """Whether the row should say the same each time."""
    return prompt.sampling.is_deterministic or prompt.seed is not None


def compare_texts(
    reference: Sequence[Finished],
    repeats: Sequence[Sequence[Finished]],
    tokenizer: Tokenizer,
    *,
    max_examples: int = 3,
) -> Differences:
    """Rows that differ from the reference in at least one of the repeats of a way.

    Only rows are compared that both finished and that should say the same each time.
    """
    texts = {row.prompt.key: _texts(row) for row in reference if is_repeatable(row.prompt)}
    compared: set[RowKey] = set()
    found: dict[RowKey, Difference] = {}
    for rows in repeats:
        for row in rows:
            expected, actual = texts.get(row.prompt.key), _texts(row)
            if not expected or not actual:
                continue
            compared.add(row.prompt.key)
            if actual != expected and row.prompt.key not in found:
                found[row.prompt.key] = _difference(row.prompt.key, expected, actual, tokenizer)
    ordered = sorted(found.values(), key=lambda difference: difference.num_equal_tokens)
    lengths = [difference.num_equal_tokens for difference in ordered]
    return Differences(
        num_compared=len(compared),
        num_different=len(found),
        num_equal_tokens_median=median(lengths) if lengths else None,
        examples=tuple(ordered[:max_examples]),
    )


def _texts(row: Finished) -> tuple[str, ...]:
    """The row's texts, without a character that was cut in two at their end."""
    return tuple(sample.text.rstrip("\ufffd") for sample in row.completion.samples)


def _difference(
    key: RowKey, expected: Sequence[str], actual: Sequence[str], tokenizer: Tokenizer
) -> Difference:
    left, right = next(_unequal(expected, actual))
    ids = [list(ids) for ids in tokenizer.encode_batch([left, right], add_special_tokens=False)]
    num_equal = common_start(*ids)
    rest = [tokenizer.decode(tokens[num_equal:]) for tokens in ids]
    return Difference(key.shard, key.row, num_equal, _excerpt(rest[0]), _excerpt(rest[1]))


def _unequal(expected: Sequence[str], actual: Sequence[str]) -> Iterator[tuple[str, str]]:
    pairs = zip_longest(expected, actual, fillvalue="")
    return ((left, right) for left, right in pairs if left != right)


def _excerpt(text: str) -> str:
    return text if len(text) <= EXCERPT_CHARS else f"{text[:EXCERPT_CHARS]}…"
