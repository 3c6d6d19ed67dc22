"""The simulated engine with every cost removed: it measures what batchgen itself costs a row.

Each request is answered by the next step with a short text, in as little Python as a
`Completion` takes to build (some 3 µs). Options other than `zero_cost` and `clock` do not
apply; a job that scripts rows or faults gets the full engine with free steps.
"""

from collections.abc import Sequence

from batchgen import __version__
from batchgen.errors import EngineDied
from batchgen.protocols import Clock
from batchgen.records import Completion, EngineInfo, EngineStats, Request, Sample


class ZeroCostEngine:
    """The engine protocol at the least possible cost. It refuses nothing."""

    def __init__(self, *, max_model_len: int, max_num_seqs: int, clock: Clock) -> None:
        self.clock = clock
        self.info = EngineInfo(
            name="simulated",
            version=__version__,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            kv_block_tokens=None,
            kv_cache_tokens=None,
            settings={"zero_cost": True},
        )
        self._queue: list[Request] = []
        self._num_prompt_tokens = 0
        self._num_output_tokens = 0
        self._death: str | None = None

    @property
    def num_unfinished(self) -> int:
        """Requests added and neither handed over nor aborted."""
        return len(self._queue)

    @property
    def num_steps(self) -> int:
        """Rises with everything that is handed over."""
        return self._num_output_tokens

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._queue.append(request)

    def step(self) -> list[Completion]:
        """Everything in the queue, finished."""
        if self._death is not None:
            raise EngineDied(self._death)
        queue, self._queue = self._queue, []
        now = self.clock.now()
        completions = [
            Completion(
                id,
                (Sample("Reply to: " + text[:40], 8, "stop"),),
                len(token_ids),
                0,
                0.0,
                0.0,
                0.0,
                now,
                now,
            )
            for id, token_ids, text, _, _, _ in queue
        ]
        self._num_output_tokens += 8 * len(queue)
        self._num_prompt_tokens += sum([len(request[1]) for request in queue])
        return completions

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """All of these, finished."""
        self._queue += requests
        return self.step()

    def abort(self, request_ids: Sequence[str]) -> list[Completion]:
        """Take requests back; none of them has produced anything."""
        wanted = set(request_ids)
        self._queue = [request for request in self._queue if request.id not in wanted]
        return []

    def reset_prefix_cache(self) -> None:
        """There is none."""

    def progress(self, request_id: str) -> None:
        """Nothing: a request has no token before the step that finishes it."""

    def stats(self) -> EngineStats:
        """Token counters; nothing ever runs or waits."""
        return EngineStats(
            num_running=0,
            num_waiting=0,
            num_preemptions=0,
            num_prompt_tokens=self._num_prompt_tokens,
            num_output_tokens=self._num_output_tokens,
        )

    def interrupt(self, reason: str) -> None:
        """From any thread: the next step raises EngineDied."""
        self._death = f"the simulated engine is gone: {reason}"

    def close(self) -> None:
        """End the engine."""
        self._death = self._death or "the simulated engine was closed"
