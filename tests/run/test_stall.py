"""An engine that hangs counts as dead, and the run goes on with a fresh one."""

import json

from batchgen import read_outputs, run_job
from batchgen.config.loading import load_job
from batchgen.engine.clock import SimulatedClock
from batchgen.errors import EngineDied
from batchgen.run.stall import GRACE_S, StallWatch


class HungEngine:
    """An engine with work in it that never gets a step done."""

    num_steps = 0
    num_unfinished = 3


class Keeper:
    def __init__(self):
        self.engine = HungEngine()
        self.interruptions = []

    def interrupt(self, reason):
        self.interruptions.append(reason)


def watched(keeper, timeout_s=600.0):
    clock = SimulatedClock()
    given_up = []
    watch = StallWatch(keeper, clock, timeout_s, give_up=given_up.append)
    return clock, watch, given_up


def test_silence_up_to_the_timeout_is_patience():
    keeper = Keeper()
    clock, watch, _ = watched(keeper)
    with watch:
        clock.sleep(590)
    assert keeper.interruptions == []


def test_silence_beyond_the_timeout_interrupts_the_engine_once():
    keeper = Keeper()
    clock, watch, given_up = watched(keeper)
    with watch:
        clock.sleep(700)
    assert len(keeper.interruptions) == 1
    assert "errors.stall_timeout is 600 s" in keeper.interruptions[0]
    assert given_up == []


def test_an_engine_that_cannot_be_interrupted_is_given_up_after_the_grace():
    keeper = Keeper()
    clock, watch, given_up = watched(keeper)
    with watch:
        clock.sleep(600 + 75 + 75 + GRACE_S)
    assert given_up
    assert "hangs" in given_up[0]


def test_steps_and_idle_time_are_no_silence():
    keeper = Keeper()
    clock, watch, _ = watched(keeper)
    with watch:
        for _ in range(10):
            clock.sleep(500)
            keeper.engine.num_steps += 1
        keeper.engine.num_unfinished = 0
        clock.sleep(5000)
    assert keeper.interruptions == []


def test_no_timeout_means_no_watch():
    keeper = Keeper()
    clock, watch, _ = watched(keeper, timeout_s=None)
    with watch:
        clock.sleep(1e6)
    assert keeper.interruptions == []


def test_a_run_survives_a_hanging_engine(tmp_path, write_jsonl):
    shard = write_jsonl("in/a.jsonl", [{"text": f"row {number}"} for number in range(60)])
    job = {
        "input": {"paths": [str(shard)]},
        "prompt": {"column": "text"},
        "model": {
            "engine": "simulated",
            "max_num_seqs": 8,
            "extra": {"faults": {"hang_after_rows": 20}},
        },
        "sampling": {"max_tokens": 8, "temperature": 0.0},
        "output": {"path": str(tmp_path / "out")},
        "errors": {"stall_timeout": 0.5},
    }
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(job))
    summary = run_job(load_job(path))
    assert summary.exit_code == 0
    assert summary.num_ok == 60
    assert summary.engine_restarts == 1
    assert sorted(read_outputs(tmp_path / "out")["row"]) == list(range(60))


def test_a_death_is_an_engine_error():
    assert EngineDied("gone").exit_code == 5
