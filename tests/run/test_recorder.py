"""Batches follow each other without a gap, whatever the store takes its time for."""

import pytest

from batchgen.engine.clock import SimulatedClock
from batchgen.engine.zero_cost import ZeroCostEngine
from batchgen.records import Prompt, Request, Sampling
from batchgen.run.budget import ErrorBudget
from batchgen.run.recorder import Recorder
from batchgen.schedule.ordering import LengthEstimate
from batchgen.stats.meter import StageSeconds

GREEDY = Sampling({"temperature": 0.0, "max_tokens": 8}, b"greedy")
SLOW_S = 3.0


class SlowStore:
    """Takes three seconds of the clock for each batch record."""

    num_unsaved = 0

    def __init__(self, clock):
        self.clock = clock
        self.batches = []

    def rows(self, rows):
        pass

    def batch(self, record):
        self.clock.sleep(SLOW_S)
        self.batches.append(record)

    def settle(self):
        pass

    def write_seconds(self):
        return 0.0


@pytest.fixture
def clock():
    return SimulatedClock()


def test_the_seconds_of_all_batches_add_up_to_those_of_the_run(clock):
    store = SlowStore(clock)
    engine = ZeroCostEngine(max_model_len=64, max_num_seqs=4, clock=clock)
    recorder = Recorder(
        run_id="run",
        feed="continuous",
        batch_size=2,
        first_batch_id=0,
        engine=engine,
        store=store,
        budget=ErrorBudget(None, None),
        request_stop=lambda stop: None,
        requeue=lambda prompts: None,
        dedupe=None,
        estimate=LengthEstimate(),
        stages=StageSeconds(),
        has_no_rows_left=lambda: False,
        with_prompt=False,
        with_json=False,
    )
    for number in range(6):
        prompt = Prompt("a.jsonl", number, 0, [1, 2], "one two", GREEDY, None)
        engine.add(Request(f"r{number}", [1, 2], "one two", GREEDY, None, prompt.key))
        clock.sleep(1.0)
        (completion,) = engine.step()
        recorder.complete(prompt, completion)
    assert sum(batch.wall_s for batch in store.batches) == pytest.approx(
        clock.now() - SLOW_S  # what the last record took comes after the last batch
    )
