"""Reading, rendering and tokenizing run ahead of the engine, in a thread of their own.

The thread walks the pending blocks in input order, makes prompts of them and puts them on a
bounded queue; the feed takes them off. Tokenizers and Parquet readers release the interpreter lock
for most of their time, so the thread costs the engine's loop little. A problem in the thread
(a shard that vanished) is raised where the feed takes the next block.
"""

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from batchgen.records import PartExtent, Prompt, Refusal, RowBlock
from batchgen.stats.meter import StageSeconds

Item = Prompt | Refusal

LONGEST_WAIT_S = 3.0
"""For the thread at the end: a template that computes for hours must not keep a stopped run."""


class PromptPipeline:
    """Prepared rows, block by block. Use as a context manager; `fetch` is the consumer's side.

    `blocks` yields (block, wanted rows or None for all); `build` turns one into prompts.
    `on_part` hears of each part before its first row can come out, `on_extent` of its end.
    """

    def __init__(
        self,
        blocks: Callable[[], Iterator[tuple[RowBlock, Collection[int] | None]]],
        build: Callable[[RowBlock, Collection[int] | None], Sequence[Item]],
        *,
        on_part: Callable[[str, int, int | None], None],
        on_extent: Callable[[PartExtent], None],
        stages: StageSeconds,
        max_blocks: int,
    ) -> None:
        self._blocks = blocks
        self._build = build
        self._on_part = on_part
        self._on_extent = on_extent
        self._stages = stages
        self._queue: queue.Queue[Sequence[Item] | None] = queue.Queue(max_blocks)
        self._failure: BaseException | None = None
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="batchgen-prepare", daemon=True)

    def __enter__(self) -> "PromptPipeline":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_closed.set()
        give_up_at = time.monotonic() + LONGEST_WAIT_S
        while self._thread.is_alive() and time.monotonic() < give_up_at:
            self._drop_one()
            self._thread.join(0.02)

    def fetch(self, wait: bool) -> Sequence[Item] | None:
        """The next rows; an empty list when none are ready (never with `wait`); None at the end."""
        try:
            items = self._queue.get(block=wait)
        except queue.Empty:
            return []
        if items is None:
            if self._failure is not None:
                raise self._failure
            self._queue.put(None)
        return items

    @property
    def is_exhausted(self) -> bool:
        """Whether the last rows have been fetched, told without waiting."""
        with self._queue.mutex:
            return self._failure is None and list(self._queue.queue) == [None]

    def _work(self) -> None:
        try:
            self._prepare_all()
        except Exception as problem:  # noqa: BLE001  (handed over to the consumer, who raises it)
            self._failure = problem
        self._put(None)

    def _prepare_all(self) -> None:
        part: tuple[str, int] | None = None
        blocks = self._blocks()
        while True:
            began = time.perf_counter()
            block, wanted = next(blocks, (None, None))
            read = time.perf_counter()
            self._stages.read_s += read - began
            if block is None or self._is_closed.is_set():
                return
            if part != (block.shard, block.part_start):
                part = (block.shard, block.part_start)
                self._on_part(block.shard, block.part_start, block.source_start)
            items = self._build(block, wanted) if block.num_rows else []
            self._stages.render_s += time.perf_counter() - read
            if block.extent is not None:
                self._on_extent(block.extent)
            if items:
                self._put(items)

    def _put(self, items: Sequence[Item] | None) -> None:
        while not self._is_closed.is_set():
            try:
                self._queue.put(items, timeout=0.1)
            except queue.Full:
                continue
            return

    def _drop_one(self) -> None:
        try:
            self._queue.get_nowait()
        except queue.Empty:
            return
