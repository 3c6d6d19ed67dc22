"""Cutting a prompt that is too long: its row's longest text loses tokens, nothing else does."""

from collections.abc import Sequence
from typing import Protocol

from batchgen.protocols import Tokenizer


class CuttingTokenizer(Tokenizer, Protocol):
    """A tokenizer that also tells where in a text its tokens stand."""

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Start and end of each token in the text, in characters; no special tokens."""
        ...


def cut_text(text: str, spans: Sequence[tuple[int, int]], keep: int, how: str) -> str:
    """`text` reduced to `keep` of its tokens, at its start, middle or end (`truncate_…`).

    What is kept stays as it is, whitespace included; a cut in the middle leaves one blank.

    >>> cut_text("a b c d", [(0, 1), (2, 3), (4, 5), (6, 7)], 2, "truncate_middle")
    'a d'
    """
    if keep >= len(spans):
        return text
    if keep <= 0:
        return ""
    if how == "truncate_end":
        return text[: spans[keep - 1][1]]
    if how == "truncate_start":
        return text[spans[-keep][0] :]
    tail = keep // 2
    head = text[: spans[keep - tail - 1][1]]
    return f"{head} {text[spans[-tail][0] :].lstrip()}" if tail else head


def output_room(max_tokens: int | None, max_model_len: int) -> int:
    """Tokens that a cut prompt leaves for its completion: `max_tokens`, half the model at most."""
    return max(1, min(max_tokens or 1, max_model_len // 2))
