"""Prefix cache of the simulated engine: which prompt blocks need no prefill.

As in vLLM, only whole KV blocks are shared, a block counts only together with everything before it
(so its name is a hash of the block and the name of the one before), at least one token
of a prompt is always computed, and the least recently used blocks go first.
"""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Blocks seen before; `capacity_tokens` None: nothing is ever evicted."""

    def __init__(self, block_tokens: int, capacity_tokens: int | None) -> None:
        self._block_tokens = block_tokens
        self._capacity = None if capacity_tokens is None else capacity_tokens // block_tokens
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def clear(self) -> None:
        """Forget every block."""
        self._blocks.clear()

    def take_in(self, token_ids: Sequence[int]) -> int:
        """Put a prompt's blocks into the cache; the number of its tokens that were in there."""
        size = self._block_tokens
        num_cached = 0
        is_shared = True
        name = 0
        for start in range(0, len(token_ids) - size + 1, size):
            name = hash((name, tuple(token_ids[start : start + size])))
            is_shared = is_shared and name in self._blocks
            num_cached += size if is_shared else 0
            self._blocks[name] = None
            self._blocks.move_to_end(name)
        while self._capacity is not None and len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
        return num_cached - size if num_cached == len(token_ids) and num_cached else num_cached
