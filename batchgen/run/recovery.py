"""An engine that dies is replaced, and no row is blamed for it without proof.

After a death the rows that were in flight go to a fresh engine, which must first finish a short
probe. A failed probe counts as a failed restart; after `engine_restarts` of them in a row the run
ends. Only when a probed engine dies with rows in flight that were in flight at the death before
are these rows isolated: run in halves, each half alone in the engine. A row that kills a probed
engine twice while it is alone there is an `engine_crash`; every other row of the group is done on
the way. Isolation has a cap of its own, since a sick machine looks like a murderous row.
"""

from collections.abc import Callable, Sequence

from batchgen.errors import EngineDied, EngineError
from batchgen.protocols import Clock, Engine
from batchgen.records import Completion, Prompt, Request, RowError, RowKey, Sampling
from batchgen.schedule.early_stop import EarlyStop
from batchgen.schedule.feeds import InFlight, Rows, Sink, Stop, feed_continuous
from batchgen.schedule.ordering import Item

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
MAX_ISOLATION_DEATHS = 64
"""Deaths that isolating one group of rows may cost: log2 of the window for each row to blame."""

_PROBE_SAMPLING = Sampling({"temperature": 0.0, "max_tokens": 1}, b"probe")


class EngineKeeper:
    """Holds the engine of a run and replaces it after a death.

    `start` builds and starts an engine; `on_engine` hears of every later engine that is ready.
    A context manager: the engine is closed at its end.
    """

    def __init__(
        self,
        start: Callable[[], Engine],
        *,
        max_failed_restarts: int,
        clock: Clock,
        on_stale: Callable[[Completion], None],
        on_engine: Callable[[Engine], None],
        on_death: Callable[[str], None],
    ) -> None:
        self._start = start
        self._max_failed_restarts = max_failed_restarts
        self._clock = clock
        self._on_stale = on_stale
        self._on_engine = on_engine
        self._on_death = on_death
        self._num_probes = 0
        self.num_restarts = 0
        self.engine: Engine | None = None

    def __enter__(self) -> "EngineKeeper":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> Engine:
        """The first engine. Its failure to start is final: nothing has worked yet."""
        self.engine = self._start()
        return self.engine

    def restart(self, death: EngineError, probe_ids: Sequence[int], stop: Stop) -> Engine:
        """A fresh engine that has finished a probe.

        Raises EngineError when `max_failed_restarts` restarts in a row have failed.
        """
        problem: EngineError = death
        for attempt in range(self._max_failed_restarts):
            pause = min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S)
            self._on_death(f"the engine died ({problem}); restarting it in {pause:g} s")
            self.close()
            stop.check()
            with stop.interruptible():
                self._clock.sleep(pause)
                try:
                    engine = self._start()
                    self.engine = engine
                    self._probe(engine, probe_ids)
                except EngineError as failure:
                    problem = failure
                    continue
            self.num_restarts += 1
            self._on_engine(engine)
            return engine
        self.close()
        raise EngineError(
            f"the engine died and {self._max_failed_restarts} restarts in a row failed "
            f"(errors.engine_restarts); the last reason: {problem}. Finished rows are kept; the "
            "same command continues once the engine works again"
        )

    def close(self) -> None:
        """End the engine, if there is one."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def interrupt(self, reason: str) -> None:
        """From any thread: make the engine die, so that the call that hangs in it returns."""
        if self.engine is not None:
            self.engine.interrupt(reason)

    def _probe(self, engine: Engine, probe_ids: Sequence[int]) -> None:
        self._num_probes += 1
        request = Request(
            f"probe{self._num_probes}",
            list(probe_ids)[:16],
            "probe",
            _PROBE_SAMPLING,
            None,
            RowKey("probe", self._num_probes),
        )
        for completion in engine.generate([request]):
            if completion.request_id != request.id:
                self._on_stale(completion)


class Recovery:
    """Runs a feed to its end over as many engines as it takes.

    A call that fails on an engine that lives on (EngineError, not EngineDied) is made again with
    the same rows; only a second failure without a finished row in between counts as a death.
    """

    def __init__(
        self,
        keeper: EngineKeeper,
        rows: Rows,
        push_back: Callable[[Sequence[Item]], None],
        sink: Sink,
        stop: Stop,
        in_flight: InFlight,
        early_stop: EarlyStop | None = None,
    ) -> None:
        self._keeper = keeper
        self._rows = rows
        self._push_back = push_back
        self._sink = sink
        self._stop = stop
        self._in_flight = in_flight
        self._early_stop = early_stop

    def run(self, feed: Callable[[Engine], None]) -> None:
        """Drive `feed` until it returns; deaths of the engine are survived as described above."""
        seen_before: set[RowKey] = set()
        failed_at: int | None = None
        while True:
            try:
                feed(self._engine())
            except EngineError as death:
                if not isinstance(death, EngineDied) and failed_at != self._sink.num_settled:
                    failed_at = self._sink.num_settled
                    self._push_back(self._in_flight.take_all())
                    continue
                lost = self._lose(death)
                suspects = [prompt for prompt in lost if prompt.key in seen_before]
                self._push_back([prompt for prompt in lost if prompt.key not in seen_before])
                seen_before = set() if suspects else {prompt.key for prompt in lost}
                if suspects:
                    self._isolate(suspects)
            else:
                return

    def _engine(self) -> Engine:
        if self._keeper.engine is None:
            raise EngineError("the engine is closed")
        return self._keeper.engine

    def _lose(self, death: EngineError) -> list[Prompt]:
        """The rows that died with the engine; a fresh engine is ready when this returns."""
        lost = self._in_flight.take_all()
        probe_ids = lost[0].token_ids if lost else [1]
        try:
            self._keeper.restart(death, probe_ids, self._stop)
        except BaseException:
            self._push_back(lost)
            raise
        return lost

    def _isolate(self, suspects: list[Prompt]) -> None:
        """Finish these rows in ever smaller groups; blame the ones that kill an engine alone."""
        groups = _halves(suspects)
        killed_alone: set[RowKey] = set()
        deaths = 0
        while groups:
            group = groups.pop()
            try:
                self._run_alone(group)
            except EngineError as death:
                deaths += 1
                lost = self._lose(death)
                if deaths > MAX_ISOLATION_DEATHS:
                    raise EngineError(
                        f"the engine died {deaths} times while {len(suspects)} rows were tried "
                        "in small groups to find the one to blame; this looks like the machine, "
                        "not like a row"
                    ) from death
                if len(group) > 1:
                    groups.extend(_halves(lost))
                elif group[0].key in killed_alone:
                    self._blame(group[0], death)
                else:
                    killed_alone.add(group[0].key)
                    groups.append(group)

    def _run_alone(self, group: list[Prompt]) -> None:
        feed_continuous(
            _Group(group),
            self._engine(),
            self._sink,
            self._stop,
            self._in_flight,
            window=len(group),
            early_stop=self._early_stop,
        )

    def _blame(self, prompt: Prompt, death: EngineError) -> None:
        error = RowError(
            "engine_crash", f"the engine died each time this row was alone in it: {death}"
        )
        self._sink.complete(prompt, Completion("", error=error))


class _Group:
    """Just these rows, as a queue."""

    def __init__(self, prompts: list[Prompt]) -> None:
        self._prompts = list(prompts)

    @property
    def is_exhausted(self) -> bool:
        return not self._prompts

    def next(self, urgency: int) -> Item | None:
        return self._prompts.pop(0) if self._prompts else None


def _halves(prompts: list[Prompt]) -> list[list[Prompt]]:
    middle = (len(prompts) + 1) // 2
    return [half for half in (prompts[middle:], prompts[:middle]) if half]
