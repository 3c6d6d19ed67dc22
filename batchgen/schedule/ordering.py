"""In which order prompts enter the engine, within blocks of `look_ahead` rows.

Three orders. `input` changes nothing. `longest_first` is the classic longest-processing-time rule:
a long row that starts last keeps one slot busy while all others stand empty, so long rows start
first. The output length is not known before, hence the estimate: the running mean of what prompts
of about this length have produced so far, capped by the row's own `max_tokens`. `prefix` sorts by
token ids, which walks the tree of shared prefixes depth first; with a cache that holds at least
the longest prompt no other order computes fewer prefill tokens (arXiv:2312.07104, theorem 3.1).

Only rows inside one block change places and blocks follow each other in input order, so no row
starves and the parts of at most two blocks are open at once.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import inf

from batchgen.records import Prompt, Refusal

Item = Prompt | Refusal

FILL_WINDOW, FILL_SLOTS, NOTHING_ELSE = 0, 1, 2
"""How badly a feed wants a row: to have one waiting, to fill a free slot, or to do anything."""


class LengthEstimate:
    """Expected output tokens of a prompt, learnt from the rows that have finished.

    Prompts are grouped by the binary logarithm of their length; each group keeps an exponentially
    weighted mean, and a group without rows yet takes that of all rows.
    """

    _WEIGHT = 0.05

    def __init__(self) -> None:
        self._means: dict[int, float] = {}
        self._overall: float | None = None

    def observe(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """A prompt of this length has produced so many tokens."""
        group = num_prompt_tokens.bit_length()
        mean = self._means.get(group, num_output_tokens)
        self._means[group] = mean + self._WEIGHT * (num_output_tokens - mean)
        overall = num_output_tokens if self._overall is None else self._overall
        self._overall = overall + self._WEIGHT * (num_output_tokens - overall)

    def expect(self, num_prompt_tokens: int, max_tokens: int | None) -> float:
        """Expected output tokens, never above `max_tokens`."""
        limit = inf if max_tokens is None else max_tokens
        mean = self._means.get(num_prompt_tokens.bit_length(), self._overall)
        return limit if mean is None or mean > limit else mean


def order_block(items: Iterable[Item], order: str, estimate: LengthEstimate) -> list[Item]:
    """One block in the order in which it enters the engine; rows without a prompt come first."""
    refused: list[Item] = []
    prompts: list[Prompt] = []
    for item in items:
        if isinstance(item, Refusal):
            refused.append(item)
        else:
            prompts.append(item)
    if order == "longest_first":
        prompts.sort(key=_cost_under(estimate), reverse=True)
    elif order == "prefix":
        prompts.sort(key=lambda prompt: tuple(prompt.token_ids))
    return refused + prompts


def _cost_under(estimate: LengthEstimate) -> Callable[[Prompt], tuple[float, int]]:
    """Expected output tokens and prompt tokens of a prompt."""
    limits: dict[int, int | None] = {}

    def cost(prompt: Prompt) -> tuple[float, int]:
        length, sampling = len(prompt.token_ids), prompt.sampling
        name = id(sampling)  # the prompts of the block keep theirs alive
        if name not in limits:
            limits[name] = sampling.max_tokens
        return estimate.expect(length, limits[name]), length

    return cost


class RowQueue:
    """Rows on their way to the engine: prepared blocks in, single rows out, in order.

    `fetch(wait)` gives the next prepared rows: an empty list when there are none yet (only with
    `wait` false), None at the end; `source_is_over` tells without fetching that nothing is left.
    Rows that an engine lost come back through `push_back` and go out first.
    """

    def __init__(
        self,
        fetch: Callable[[bool], Sequence[Item] | None],
        *,
        order: str,
        look_ahead: int,
        estimate: LengthEstimate,
        source_is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._fetch = fetch
        self._source_is_over = source_is_over
        self._order = order
        self._look_ahead = look_ahead if order != "input" else 1
        self._estimate = estimate
        self._ready: deque[Item] = deque()
        self._gathered: list[Item] = []
        self._at_end = False

    @property
    def is_exhausted(self) -> bool:
        """Nothing is left, and nothing will come."""
        return self._at_end and not self._ready and not self._gathered

    @property
    def is_over(self) -> bool:
        """The same, told also where the end has not been fetched yet."""
        is_empty = not self._ready and not self._gathered
        return is_empty and (self._at_end or self._source_is_over())

    def push_back(self, items: Sequence[Item]) -> None:
        """These go out next, in this order."""
        self._ready.extendleft(reversed(items))

    def next(self, urgency: int) -> Item | None:
        """The next row, or None.

        A block is sorted when it is full. An incomplete one is sorted early only for a free slot
        (`FILL_SLOTS`), and only `NOTHING_ELSE` waits for the reader; None then means the end.
        """
        if not self._ready:
            self._refill(urgency)
        return self._ready.popleft() if self._ready else None

    def _refill(self, urgency: int) -> None:
        while not self._at_end and len(self._gathered) < self._look_ahead:
            wait = urgency == NOTHING_ELSE and not self._gathered
            items = self._fetch(wait)
            if items is None:
                self._at_end = True
            elif items:
                self._gathered.extend(items)
            elif urgency == FILL_WINDOW or not self._gathered:
                return
            else:
                break
        if self._gathered:
            self._ready.extend(order_block(self._gathered, self._order, self._estimate))
            self._gathered = []
