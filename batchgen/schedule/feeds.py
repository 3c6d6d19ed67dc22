"""How prompts enter the engine. Three feeds, one task: every row out of the queue is settled.

`generate` is the plain loop: `size` rows, one call of the engine's batch API, the next `size` rows.
The call returns when its longest row has finished, so the engine drains at every boundary.
`continuous` has no boundary: a window of rows is in flight, and a row that finishes makes room for
the next one, whatever batch, part or shard it belongs to. `sequential` sends one row at a time, the
baseline that batching is measured against.

A feed sees an engine, a queue and a sink, and knows nothing of files, runs or faults. When the
engine dies, `EngineDied` passes through; the rows that were in flight are in `InFlight` and go to
the next engine.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import count
from typing import Protocol

from batchgen.protocols import Engine
from batchgen.records import Completion, Prompt, Refusal, Request
from batchgen.schedule.early_stop import EarlyStop
from batchgen.schedule.ordering import FILL_SLOTS, FILL_WINDOW, NOTHING_ELSE, Item


class Rows(Protocol):
    """Where rows come from; `ordering.RowQueue` is the real one."""

    @property
    def is_exhausted(self) -> bool:
        """Nothing is left, and nothing will come."""
        ...

    def next(self, urgency: int) -> Item | None:
        """The next row, or None when there is none for this urgency."""
        ...


class Sink(Protocol):
    """Where rows go when their fate is known."""

    @property
    def num_settled(self) -> int:
        """Rows settled so far."""
        ...

    @property
    def num_unsaved(self) -> int:
        """Settled rows that a kill would still lose."""
        ...

    def save(self) -> None:
        """Return when no settled row can be lost by a kill."""
        ...

    def refuse(self, refusal: Refusal) -> None:
        """This row never reaches the engine."""
        ...

    def admit(self, prompt: Prompt) -> bool:
        """Whether the engine has to work for this prompt; false where an equal one did or does."""
        ...

    def complete(self, prompt: Prompt, completion: Completion) -> None:
        """The engine has finished with this prompt, well or badly."""
        ...

    def stale(self, completion: Completion) -> None:
        """A completion that nobody waits for; it is counted and dropped."""
        ...

    def occupied(self, seconds: float, num_running: int, num_waiting: int) -> None:
        """`seconds` have passed with so many rows decoding and waiting: a step of the engine, or
        the time between two steps (then its `num_steps` has not risen)."""
        ...

    def called(self, completions: list[Completion]) -> None:
        """One call of the batch API has ended; the time stamps tell how full the engine was."""
        ...

    def end_batch(self) -> None:
        """The rows settled since the last batch are one batch."""
        ...


class Stop(Protocol):
    """Whether the run has to end now."""

    @property
    def ends_feeding(self) -> bool:
        """No new row may enter the engine."""
        ...

    def check(self, num_in_flight: int = 0) -> None:
        """Raise where the run has to end (signal, deadline, error budget).

        An error budget that is used up ends the feeding; it raises when nothing is in flight.
        """
        ...

    def interruptible(self) -> AbstractContextManager[None]:
        """A context in which a signal ends a long call of the engine at once."""
        ...


class InFlight:
    """The rows that an engine has and that are not settled, by request id.

    Ids count on over engines and calls, so that a completion of an earlier engine or call can
    never be taken for that of another row.
    """

    def __init__(self) -> None:
        self._prompts: dict[str, Prompt] = {}
        self._ids: Iterator[int] = count(1)

    def __len__(self) -> int:
        return len(self._prompts)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._prompts

    @property
    def request_ids(self) -> list[str]:
        """Ids of all requests in flight."""
        return list(self._prompts)

    def enter(self, prompt: Prompt) -> Request:
        """The request to send for this prompt."""
        request_id = f"r{next(self._ids)}"
        self._prompts[request_id] = prompt
        return Request(
            request_id, prompt.token_ids, prompt.text, prompt.sampling, prompt.seed, prompt.key
        )

    def leave(self, completion: Completion, sink: Sink) -> None:
        """Settle the row that this completion belongs to, if any waits for it."""
        prompt = self._prompts.pop(completion.request_id, None)
        if prompt is None:
            sink.stale(completion)
        else:
            sink.complete(prompt, completion)

    def take_all(self) -> list[Prompt]:
        """All rows in flight, which are so no longer."""
        prompts = list(self._prompts.values())
        self._prompts.clear()
        return prompts


def feed_continuous(
    rows: Rows,
    engine: Engine,
    sink: Sink,
    stop: Stop,
    in_flight: InFlight,
    *,
    window: int,
    early_stop: EarlyStop | None = None,
) -> None:
    """Keep `window` rows in flight until the queue is exhausted.

    Finished rows that are not saved yet count as well, so a kill costs one window at most. The
    slots stay full: the feed waits for the journal before it would leave one free.
    """
    slots = engine.info.max_num_seqs
    now = engine.clock.now()
    while True:
        was_empty = not len(in_flight)
        stop.check(len(in_flight))
        room = window - sink.num_unsaved
        if room < min(window, slots):
            sink.save()
            room = window
        while len(in_flight) < room:
            urgency = _urgency(len(in_flight), slots)
            prompt = _next_prompt(rows, sink, stop, urgency)
            if prompt is None:
                break
            request = in_flight.enter(prompt)
            refused = engine.add(request)
            if refused is not None:
                in_flight.leave(refused, sink)
            elif early_stop is not None:
                early_stop.follow(request.id)
        if not len(in_flight):
            if rows.is_exhausted:
                return
            continue
        num_running = min(len(in_flight), slots)
        num_waiting = len(in_flight) - num_running
        ended, began = now, engine.clock.now()
        sink.occupied(began - ended, *((0, 0) if was_empty else (num_running, num_waiting)))
        finished = engine.step()
        now = engine.clock.now()
        sink.occupied(now - began, num_running, num_waiting)
        for completion in finished:
            in_flight.leave(completion, sink)
        if early_stop is not None:
            for completion in early_stop.after_step(engine, in_flight):
                in_flight.leave(completion, sink)


def feed_generate(
    rows: Rows,
    engine: Engine,
    sink: Sink,
    stop: Stop,
    in_flight: InFlight,
    *,
    batch_size: int,
    early_stop: EarlyStop | None = None,
) -> None:
    """One call of the engine's batch API for each `batch_size` rows, saved before the next one."""
    while not rows.is_exhausted:
        stop.check()
        requests = _take_batch(rows, sink, in_flight, batch_size)
        if requests:
            with stop.interruptible():
                completions = _generate(engine, requests, early_stop)
            sink.called(completions)
            for completion in completions:
                in_flight.leave(completion, sink)
        sink.end_batch()
        sink.save()


def feed_sequential(
    rows: Rows,
    engine: Engine,
    sink: Sink,
    stop: Stop,
    in_flight: InFlight,
    *,
    early_stop: EarlyStop | None = None,
) -> None:
    """One row at a time: the next one enters when the engine is empty."""
    while (prompt := _next_prompt(rows, sink, stop, NOTHING_ELSE)) is not None:
        request = in_flight.enter(prompt)
        with stop.interruptible():
            completions = _generate(engine, [request], early_stop)
        sink.called(completions)
        for completion in completions:
            in_flight.leave(completion, sink)
    if not rows.is_exhausted:
        stop.check()


def _generate(
    engine: Engine, requests: Sequence[Request], early_stop: EarlyStop | None
) -> list[Completion]:
    """Finish all of these: one call of the batch API, unless rows may be stopped early.

    That call cannot be interrupted for a single row, so then its steps are taken one by one; the
    engine drains at the end just the same.
    """
    if early_stop is None:
        return engine.generate(requests)
    completions: list[Completion] = []
    waiting = {request.id for request in requests}
    for request in requests:
        refused = engine.add(request)
        if refused is not None:
            completions.append(refused)
        else:
            early_stop.follow(request.id)
    while engine.num_unfinished:
        finished = engine.step()
        waiting.difference_update(completion.request_id for completion in finished)
        completions += finished
        completions += early_stop.after_step(engine, waiting)
    return completions


def _urgency(num_in_flight: int, slots: int) -> int:
    if num_in_flight == 0:
        return NOTHING_ELSE
    return FILL_SLOTS if num_in_flight < slots else FILL_WINDOW


def _next_prompt(rows: Rows, sink: Sink, stop: Stop, urgency: int) -> Prompt | None:
    """The next row that the engine has to work for; refused rows and copies settle on the way.

    None also where the run has to end, so that a long stretch of refused rows cannot hide it.
    """
    while not stop.ends_feeding and (item := rows.next(urgency)) is not None:
        if isinstance(item, Refusal):
            sink.refuse(item)
        elif sink.admit(item):
            return item
    return None


def _take_batch(rows: Rows, sink: Sink, in_flight: InFlight, batch_size: int) -> list[Request]:
    """The next `batch_size` rows, as requests for those among them that need the engine."""
    requests: list[Request] = []
    for _ in range(batch_size):
        item = rows.next(NOTHING_ELSE)
        if item is None:
            break
        if isinstance(item, Refusal):
            sink.refuse(item)
        elif sink.admit(item):
            requests.append(in_flight.enter(item))
    return requests
