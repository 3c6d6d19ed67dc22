"""Python's garbage collector, made cheap while rows flow.

A row is some twenty small objects, none of them in a cycle, so reference counts free them all. The
cycle collector looks at them nevertheless, every 700 allocations, and now and then at everything
that an imported engine holds, which takes a good part of a second. While rows flow, what is there
already is set aside, and the collector comes by less often: memory of real cycles waits for it a
little longer.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ALLOCATIONS: Final = 50_000
"""New containers between two looks of the collector; some megabytes at most."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect rarely inside this block, and as before after it."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
