"""Equal prompts are generated once.

Two prompts are equal when their token ids and their effective sampling are, and one may stand for
the other only where sampling is deterministic (greedy, one completion). The first of a group is
its leader and goes to the engine; the others are held, and become copies when the leader has
finished. A leader that fails passes the lead to the next of its group: a failure is never copied.

Memory is bounded: finished leaders are remembered in least-recently-used order up to
`max_bytes` of text, after which an equal prompt is simply generated again.
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence
from enum import Enum
from hashlib import sha256

from batchgen.records import FinishedRow, Prompt, Sampling


class Admission(Enum):
    """What becomes of a prompt that is about to enter the engine."""

    LEAD = "lead"
    """It goes to the engine."""
    HELD = "held"
    """An equal one is in flight; this one finishes with it."""


class Dedupe:
    """The groups of equal prompts. One caller, one thread."""

    def __init__(self, max_bytes: int = 32 << 20) -> None:
        self._leaders: dict[bytes, tuple[str, int]] = {}
        self._digests: dict[tuple[str, int], bytes] = {}
        self._held: dict[bytes, deque[Prompt]] = {}
        self._finished: OrderedDict[bytes, FinishedRow] = OrderedDict()
        self._finished_bytes = 0
        self._max_bytes = max_bytes
        self._sampling: Sampling | None = None
        self._is_deterministic = False

    def admit(self, prompt: Prompt) -> Admission | FinishedRow:
        """Lead, be held, or, where an equal prompt has finished, that one's row to copy."""
        sampling = prompt.sampling
        if sampling is not self._sampling:
            self._sampling, self._is_deterministic = sampling, sampling.is_deterministic
        if not self._is_deterministic:
            return Admission.LEAD
        key = prompt_digest(prompt.token_ids, sampling.key)
        finished = self._finished.get(key)
        if finished is not None:
            self._finished.move_to_end(key)
            return finished
        row = prompt[:2]
        if self._leaders.setdefault(key, row) == row:
            self._digests[row] = key
            return Admission.LEAD
        self._held.setdefault(key, deque()).append(prompt)
        return Admission.HELD

    def settle(self, leader: Prompt, row: FinishedRow) -> tuple[list[Prompt], Prompt | None]:
        """The leader has finished as `row`: prompts that copy it, or the one that leads now."""
        key = self._digests.pop(leader[:2], None)
        if key is None:
            return [], None
        del self._leaders[key]
        held = self._held.pop(key, None)
        if row.error_type is None:
            self._remember(key, row)
            return list(held) if held else [], None
        if not held:
            return [], None
        successor = held.popleft()
        self._leaders[key] = successor[:2]
        self._digests[successor[:2]] = key
        if held:
            self._held[key] = held
        return [], successor

    def _remember(self, key: bytes, row: FinishedRow) -> None:
        self._finished[key] = row
        self._finished_bytes += _weight(row)
        while self._finished_bytes > self._max_bytes:
            _, oldest = self._finished.popitem(last=False)
            self._finished_bytes -= _weight(oldest)


def prompt_digest(token_ids: Sequence[int], sampling_key: bytes) -> bytes:
    """SHA-256 over the token ids and the sampling: equal prompts, equal digests.

    Processors have instructions for it, which makes it the quickest sound digest of the standard
    library for the kilobyte that a prompt is.
    """
    ids = array("q", token_ids) if isinstance(token_ids, list) else token_ids
    return sha256(sampling_key + bytes(ids)).digest()


def copy_row(leader: FinishedRow, prompt: Prompt, *, run_id: str, batch_id: int) -> FinishedRow:
    """The row of a copy: the leader's texts and token counts, no times of its own."""
    return leader._replace(
        shard=prompt.shard,
        row=prompt.row,
        part_start=prompt.part_start,
        ttft_s=None,
        latency_s=None,
        run_id=run_id,
        batch_id=batch_id,
        duplicate_of=leader.duplicate_of or f"{leader.shard}:{leader.row}",
    )


def _weight(row: FinishedRow) -> int:
    """Bytes that a remembered row takes: its texts, and some 800 for the objects around them."""
    return 800 + len(row.output or "") + len(row.prompt or "") + len(row.reasoning or "")
