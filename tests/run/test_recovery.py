"""Deaths of the engine cost time, never rows, and blame needs proof."""

from collections import deque

import pytest

from batchgen.config.simulated import SimulatedOptions
from batchgen.engine.clock import SimulatedClock
from batchgen.engine.faults import FaultState
from batchgen.engine.simulated import SimulatedEngine
from batchgen.errors import EngineError
from batchgen.records import Prompt, Sampling
from batchgen.run.recovery import EngineKeeper, Recovery
from batchgen.run.stop import StopWatch
from batchgen.schedule.feeds import InFlight, feed_continuous

GREEDY = Sampling({"temperature": 0.0, "max_tokens": 8}, b"greedy")


class ListRows:
    def __init__(self, prompts):
        self.prompts = deque(prompts)

    @property
    def is_exhausted(self):
        return not self.prompts

    def next(self, urgency):
        return self.prompts.popleft() if self.prompts else None

    def push_back(self, prompts):
        self.prompts.extendleft(reversed(prompts))


class ListSink:
    """Keeps the fate of each row."""

    def __init__(self):
        self.fates = {}
        self.num_stale = 0

    @property
    def num_settled(self):
        return len(self.fates)

    num_unsaved = 0

    def save(self):
        pass

    def admit(self, prompt):
        return True

    def complete(self, prompt, completion):
        assert prompt.row not in self.fates
        self.fates[prompt.row] = completion.error.type if completion.error else "ok"

    def stale(self, completion):
        self.num_stale += 1

    def occupied(self, seconds, num_running, num_waiting):
        pass


class Night:
    """A feed over prompts, with an engine that is restarted as the faults demand."""

    def __init__(self, num_rows, options, *, restarts=3, slots=16):
        self.clock = SimulatedClock()
        self.state = FaultState()
        self.sink = ListSink()
        self.slots = slots
        self.options = SimulatedOptions.model_validate({"clock": "simulated", **options})
        self.rows = ListRows(
            Prompt("a.jsonl", row, 0, [row + 1, 2, 3], f"row {row}", GREEDY, None)
            for row in range(num_rows)
        )
        self.deaths = []
        self.keeper = EngineKeeper(
            self.start,
            max_failed_restarts=restarts,
            clock=self.clock,
            on_stale=self.sink.stale,
            on_engine=lambda engine: None,
            on_death=self.deaths.append,
        )

    def start(self):
        return SimulatedEngine(
            self.options,
            max_model_len=64,
            max_num_seqs=self.slots,
            clock=self.clock,
            faults=self.state,
        )

    def run(self):
        in_flight = InFlight()
        with StopWatch(self.clock) as stop, self.keeper:
            self.keeper.start()
            recovery = Recovery(
                self.keeper, self.rows, self.rows.push_back, self.sink, stop, in_flight
            )
            recovery.run(
                lambda engine: feed_continuous(
                    self.rows, engine, self.sink, stop, in_flight, window=2 * self.slots
                )
            )
        return self.sink.fates


def test_a_dead_engine_is_replaced_and_no_row_is_blamed():
    night = Night(100, {"faults": {"die_after_rows": 40}})
    fates = night.run()
    assert len(fates) == 100
    assert set(fates.values()) == {"ok"}
    assert night.keeper.num_restarts == 1


def test_an_engine_that_stays_dead_ends_the_run_after_its_restarts():
    night = Night(300, {"faults": {"die_after_rows": 100, "die_on_start": "always"}}, restarts=2)
    with pytest.raises(EngineError, match="2 restarts in a row failed"):
        night.run()
    assert set(night.sink.fates.values()) == {"ok"}
    assert len(night.sink.fates) == 100
    assert [line.rsplit(" in ", 1)[1] for line in night.deaths] == ["1 s", "2 s"]


def test_a_row_that_always_kills_the_engine_is_the_only_one_blamed():
    script = {"a.jsonl:137": {"fault": "crash"}}
    fates = Night(1000, {"script": script}).run()
    assert len(fates) == 1000
    assert {row for row, fate in fates.items() if fate != "ok"} == {137}
    assert fates[137] == "engine_crash"


def test_two_murderous_rows_are_both_found():
    script = {"a.jsonl:30": {"fault": "crash"}, "a.jsonl:31": {"fault": "crash"}}
    fates = Night(200, {"script": script}).run()
    assert {row for row, fate in fates.items() if fate == "engine_crash"} == {30, 31}
    assert len(fates) == 200


def test_rows_that_the_engine_fails_alone_do_not_stop_anything():
    script = {"a.jsonl:3": {"fault": "row_error"}}
    fates = Night(50, {"script": script}).run()
    assert fates[3] == "engine_error"
    assert sum(fate == "ok" for fate in fates.values()) == 49
