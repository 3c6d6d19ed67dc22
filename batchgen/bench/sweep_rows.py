"""Which rows a trial of a sweep works on.

Trials with few rows in flight take few rows, those with many take many, and all of them have to be
the same kind of work: else a point would look fast because its prompts happened to be short. So
rows are taken in an order in which each beginning holds short and long prompts alike.

A concurrency of n needs several times n rows, and an input may hold fewer. Then rows are repeated,
but a repeated prompt would find itself in the prefix cache and cost nothing. So a copy keeps the
tokens that its row shares with other rows, which the cache may well serve, and gets a mark behind
them: two tokens that no other row has there, so that no later block was seen before. A copy gets as
many output tokens as its row had, since the mark may change what a model has to say.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from batchgen.bench.workload import Workload, is_structured
from batchgen.records import Prompt, RowKey
from batchgen.schedule.dedupe import prompt_digest
from batchgen.schedule.ordering import LengthEstimate, order_block


class SweepRows:
    """The rows of a sweep, and how long their completions have been so far.

    `order` is the job's `batch.order`. With `dedupe` equal prompts are left out, as in a run.
    """

    def __init__(self, prompts: Sequence[Prompt], *, order: str, dedupe: bool) -> None:
        self._prompts = distinct(prompts) if dedupe else list(prompts)
        self._places = {prompt.key: place for place, prompt in enumerate(self._prompts)}
        self._balanced = balanced(self._prompts)
        self._order = order
        self._lengths: dict[RowKey, int] = {}
        self._shared: dict[RowKey, int] | None = None
        self._vocabulary: list[int] = []

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def sequences_per_row(self) -> int:
        """Slots that a row takes: its `n` completions, the most of all rows."""
        return max(prompt.sampling.n for prompt in self._prompts)

    def take(self, num_rows: int) -> list[Prompt]:
        """So many rows, in the order in which they enter the engine.

        `longest_first` is left out: it would put work of one kind at the start of a trial and of
        another kind at its end.
        """
        rows = self._first(num_rows)
        return rows if self._order == "longest_first" else self.ordered(rows, self._order)

    def ordered(self, rows: Sequence[Prompt], order: str) -> list[Prompt]:
        """These rows as a run with this `batch.order` would send them."""
        rows = sorted(rows, key=lambda row: self._places.get(row.key, len(self._places)))
        ordered = order_block(rows, order, LengthEstimate())
        return [item for item in ordered if isinstance(item, Prompt)]

    def learn(self, lengths: Mapping[RowKey, int]) -> None:
        """Output tokens that rows have had."""
        known = {key: number for key, number in lengths.items() if key in self._places}
        self._lengths |= known

    @property
    def tokens_per_row(self) -> float | None:
        """Output tokens of a row, over all rows seen; None before the first."""
        return sum(self._lengths.values()) / len(self._lengths) if self._lengths else None

    def _first(self, num_rows: int) -> list[Prompt]:
        size = len(self._balanced)
        numbers = range(size, num_rows)
        copies = [self._copy(self._balanced[number % size], number) for number in numbers]
        return [*self._balanced[:num_rows], *copies]

    def _copy(self, prompt: Prompt, number: int) -> Prompt:
        if self._shared is None:
            self._shared = shared_starts(self._prompts)
            self._vocabulary = sorted({id for row in self._prompts for id in row.token_ids})
        mark = divmod(number, len(self._vocabulary))
        ids = [self._vocabulary[digit % len(self._vocabulary)] for digit in mark]
        copy = marked(prompt, self._shared[prompt.key], ids, number)
        length = self._lengths.get(prompt.key)
        if length is None or is_structured(prompt):
            return copy
        return Workload((copy,), 0, 0).pinned([max(1, length)]).prompts[0]


def distinct(prompts: Iterable[Prompt]) -> list[Prompt]:
    """The first of all equal prompts whose completions would be equal, too."""
    seen: set[bytes] = set()
    kept = []
    for prompt in prompts:
        key = prompt_digest(prompt.token_ids, prompt.sampling.key)
        if not prompt.sampling.is_deterministic or key not in seen:
            kept.append(prompt)
        seen.add(key)
    return kept


def balanced(prompts: Sequence[Prompt]) -> list[Prompt]:
    """An order of which each beginning has about the lengths of the whole.

    Sorted by length and visited in the order of van der Corput's sequence: the middle, the
    quarters, the eighths.
    """
    ordered = sorted(prompts, key=lambda prompt: len(prompt.token_ids))
    bits = max(1, (len(ordered) - 1).bit_length())
    places = [int(f"{number:0{bits}b}"[::-1], 2) for number in range(1, 1 << bits)]
    return [ordered[place] for place in (*places, 0) if place < len(ordered)]


def shared_starts(prompts: Iterable[Prompt]) -> dict[RowKey, int]:
    """For each row the tokens at its start that it shares with any other one."""
    ordered = sorted((list(prompt.token_ids), prompt.key) for prompt in prompts)
    shared = dict.fromkeys((key for _, key in ordered), 0)
    for (ids, key), (next_ids, next_key) in pairwise(ordered):
        length = common_start(ids, next_ids)
        shared[key] = max(shared[key], length)
        shared[next_key] = max(shared[next_key], length)
    return shared


def common_start(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with.

    >>> common_start([1, 2, 3], [1, 2, 4, 5])
    2
    """
    pairs = zip(one, other, strict=False)
    shortest = min(len(one), len(other))
    return next((place for place, (a, b) in enumerate(pairs) if a != b), shortest)


def marked(prompt: Prompt, num_shared: int, mark: Sequence[int], number: int) -> Prompt:
    """A copy of the row, named after it and its number, with other tokens behind the shared ones.

    It has as many tokens as the row.
    """
    ids = list(prompt.token_ids)
    end = min(len(ids), num_shared + len(mark))
    ids[num_shared:end] = mark[: end - num_shared]
    return prompt._replace(shard=f"{prompt.shard}#copy-{number}", token_ids=ids)
