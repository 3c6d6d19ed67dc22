"""The collector comes by rarely while rows flow, and as before afterwards."""

import gc

from batchgen.run.garbage import ALLOCATIONS, rare_collections


def test_the_collector_comes_by_rarely_inside_and_as_before_afterwards():
    before = gc.get_threshold()
    with rare_collections():
        assert gc.get_threshold()[0] == ALLOCATIONS
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_a_cycle_that_was_set_aside_is_freed_after_the_block():
    class Node:
        freed = 0

        def __del__(self):
            Node.freed += 1

    node = Node()
    node.itself = node
    with rare_collections():
        del node
        gc.collect()
        assert Node.freed == 0
    gc.collect()
    assert Node.freed == 1
