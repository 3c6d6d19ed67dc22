"""The cost model, the replies and the scripted faults of the simulated engine."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from batchgen.config.simulated import SimulatedOptions
from batchgen.engine.clock import RealClock, SimulatedClock
from batchgen.engine.faults import FaultState
from batchgen.engine.simulated import SimulatedEngine
from batchgen.engine.zero_cost import ZeroCostEngine
from batchgen.errors import EngineDied, EngineError, JobFileError
from batchgen.records import Completion, Request, RowKey, Sampling

GREEDY = {"max_tokens": 16, "temperature": 0.0}


def make_engine(
    options: dict[str, Any] | None = None,
    *,
    faults: FaultState | None = None,
    max_num_seqs: int = 128,
    max_model_len: int = 4096,
) -> SimulatedEngine:
    return SimulatedEngine(
        SimulatedOptions.model_validate(options or {}),
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        clock=SimulatedClock(),
        faults=faults,
    )


def make_request(row: int, text: str | None = None, **values: Any) -> Request:
    text = f"row {row}" if text is None else text
    sampling = Sampling({**GREEDY, **values}, repr(sorted(values.items())).encode())
    return Request(f"r{row}", text.split(), text, sampling, None, RowKey("a.jsonl", row))


def finish(engine: SimulatedEngine, requests: list[Request]) -> list[Completion]:
    completions = [c for c in map(engine.add, requests) if c is not None]
    while engine.num_unfinished:
        completions += engine.step()
    return completions


def step_for_ever(engine: SimulatedEngine, done: list[Completion]) -> None:
    while True:
        done += engine.step()


def text_of(completion: Completion) -> str:
    return completion.samples[0].text


def test_a_reply_contains_its_prompt_and_one_word_is_one_token() -> None:
    (completion,) = finish(make_engine(), [make_request(0, "lamp lamp  coast silver")])
    (sample,) = completion.samples
    assert "lamp lamp  coast silver" in sample.text
    assert len(sample.text.split()) == sample.num_tokens


def test_a_cut_reply_ends_for_length() -> None:
    (completion,) = finish(make_engine(), [make_request(0, "a b c d", max_tokens=3)])
    assert completion.samples[0].text == "Reply to: a"
    assert completion.samples[0].finish_reason == "length"


def test_lengths_are_skewed_around_their_median() -> None:
    requests = [make_request(row, max_tokens=None) for row in range(2000)]
    completions = finish(make_engine({"reply_tokens": 100}), requests)
    lengths = sorted(completion.samples[0].num_tokens for completion in completions)
    assert 95 <= lengths[1000] <= 105
    assert sum(lengths) / 2000 > 110


@pytest.mark.parametrize(
    ("directions", "reply"),
    [
        ({"reply": '[{"a":1}]'}, ('[{"a":1}]', "stop")),
        ({"reply": '[{"a"', "finish_reason": "length"}, ('[{"a"', "length")),
        ({"reply": " kept  as it\nis "}, (" kept  as it\nis ", "stop")),
        ({"reply": "one two three", "max": 2}, ("one two", "length")),
        ({"reply": ""}, ("", "stop")),
    ],
)
def test_a_scripted_reply_comes_out_as_written(
    directions: dict[str, Any], reply: tuple[str, str]
) -> None:
    max_tokens = directions.pop("max", 16)
    engine = make_engine({"script": {"a.jsonl:0": directions}})
    (completion,) = finish(engine, [make_request(0, max_tokens=max_tokens)])
    sample = completion.samples[0]
    assert (sample.text, sample.finish_reason) == reply


def test_scripted_length_is_still_cut_by_max_tokens() -> None:
    engine = make_engine(
        {"script": {"a.jsonl:0": {"reply_tokens": 30}, "a.jsonl:1": {"reply_tokens": 5}}}
    )
    completions = finish(engine, [make_request(0), make_request(1)])
    told = {
        c.request_id: (c.samples[0].num_tokens, c.samples[0].finish_reason) for c in completions
    }
    assert told == {"r0": (16, "length"), "r1": (5, "stop")}


@pytest.mark.parametrize("name", ["script.json", "script.jsonl"])
def test_a_script_may_be_a_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    row = {"shard": "a.jsonl", "row": 0, "reply": "from a file"}
    whole = {"a.jsonl:0": {"reply": "from a file"}}
    path.write_text(json.dumps(row if name.endswith("l") else whole) + "\n")
    (completion,) = finish(make_engine({"script": str(path)}), [make_request(0)])
    assert text_of(completion) == "from a file"


@pytest.mark.parametrize("content", [None, "{", '{"a.jsonl:0": {"repyl": "x"}}', "[1]"])
def test_an_unusable_script_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "script.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(JobFileError, match=r"model\.extra\.script: .*script\.json"):
        make_engine({"script": str(path)})


def test_structured_output_fits_the_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "size": {"$ref": "#/$defs/n"}},
        "$defs": {"n": {"type": "integer", "minimum": 3}},
    }
    request = make_request(0, max_tokens=None, json_schema=json.dumps(schema))
    (completion,) = finish(make_engine(), [request])
    assert json.loads(text_of(completion)) == {"city": "Reply to: row 0", "size": 3}


def test_random_samples_of_equal_prompts_differ_between_rows() -> None:
    requests = [make_request(row, "A", temperature=0.8, n=4) for row in range(3)]
    completions = finish(make_engine(), requests)
    assert len({sample.text for c in completions for sample in c.samples}) == 12


def test_a_step_costs_what_the_model_says() -> None:
    engine = make_engine(
        {"step_s": 0.01, "decode_token_s": 0.001, "prefill_token_s": 0.0001, "reply_sigma": 0}
    )
    requests = [make_request(row, "a b c d e", max_tokens=10) for row in range(4)]
    completions = finish(engine, requests)
    step_s = 0.01 + 4 * 0.001
    assert engine.clock.now() == pytest.approx(10 * step_s + 20 * 0.0001)
    assert completions[0].ttft_s == pytest.approx(step_s + 20 * 0.0001)
    assert completions[0].latency_s == pytest.approx(engine.clock.now())


def test_sequences_wait_for_slots() -> None:
    engine = make_engine({"step_s": 1.0, "decode_token_s": 0, "prefill_token_s": 0}, max_num_seqs=2)
    completions = finish(engine, [make_request(row, max_tokens=4) for row in range(4)])
    assert [c.queue_s for c in completions] == [0, 0, 4, 4]


def test_sequences_wait_for_kv_cache() -> None:
    engine = make_engine({"kv_cache_tokens": 50})
    for row in range(5):
        engine.add(make_request(row, max_tokens=16, ignore_eos=True))
    engine.step()
    assert (engine.stats().num_running, engine.stats().kv_cache_usage) == (2, 36 / 50)


def test_one_step_covers_little_simulated_time() -> None:
    engine = make_engine({"step_s": 0.1, "script": {"a.jsonl:0": {"reply_tokens": 2000}}})
    engine.add(make_request(0, max_tokens=None))
    engine.step()
    before = engine.clock.now()
    assert engine.step() == []
    assert engine.clock.now() - before <= 1.0


def test_a_stall_keeps_the_whole_engine_busy() -> None:
    engine = make_engine({"step_s": 0, "script": {"a.jsonl:1": {"stall_s": 300}}}, max_num_seqs=1)
    minutes: list[float] = []
    engine.clock.every(60, lambda: minutes.append(engine.clock.now()))
    finish(engine, [make_request(row) for row in range(3)])
    assert len(minutes) == 5


def test_one_batch_of_all_is_faster_than_small_ones_with_a_long_tail() -> None:
    script = {f"a.jsonl:{row}": {"reply_tokens": 20} for row in range(512)}
    script |= {f"a.jsonl:{row}": {"reply_tokens": 500} for row in range(7, 512, 64)}

    def total_s(batch_size: int) -> float:
        engine = make_engine({"script": script}, max_num_seqs=64)
        for start in range(0, 512, batch_size):
            rows = range(start, start + batch_size)
            engine.generate([make_request(row, max_tokens=None) for row in rows])
        return engine.clock.now()

    assert total_s(64) > 1.5 * total_s(256) > 1.5 * total_s(512)


def test_whole_blocks_of_a_shared_prefix_cost_no_prefill() -> None:
    text = " ".join(f"w{number}" for number in range(40))
    engine = make_engine({"prefill_token_s": 1.0, "kv_block_tokens": 16})
    first, second = (
        finish(engine, [make_request(row, f"{text} {row}")])[0].num_cached_tokens for row in (0, 1)
    )
    assert (first, second) == (0, 32)


def test_the_cache_forgets_what_was_used_least_recently() -> None:
    texts = [" ".join(f"{letter}{number}" for number in range(17)) for letter in "abc"]
    engine = make_engine({"kv_cache_tokens": 32, "kv_block_tokens": 16})
    cached = [
        finish(engine, [make_request(row, texts[which])])[0].num_cached_tokens
        for row, which in enumerate([0, 1, 0, 2, 1, 0])
    ]
    assert cached == [0, 0, 16, 0, 0, 0]


def test_a_row_error_concerns_its_row_alone() -> None:
    script = {"a.jsonl:1": {"fault": "row_error"}, "a.jsonl:2": {"fault": "row_error_once"}}
    state = FaultState()
    engine = make_engine({"script": script}, faults=state)
    rounds = [
        {
            completion.request_id: completion.error and completion.error.type
            for completion in engine.generate([make_request(row) for row in range(3)])
        }
        for _ in range(2)
    ]
    assert rounds == [
        {"r0": None, "r1": "engine_error", "r2": "engine_error"},
        {"r0": None, "r1": "engine_error", "r2": None},
    ]


def test_the_engine_finishes_exactly_the_announced_rows_and_dies() -> None:
    state = FaultState()
    options = {"faults": {"die_after_rows": 10, "die_on_start": "always"}}
    engine = make_engine(options, faults=state)
    for row in range(64):
        engine.add(make_request(row))
    done: list[Completion] = []
    with pytest.raises(EngineDied, match="after 10 rows"):
        step_for_ever(engine, done)
    assert len(done) == 10
    again = make_engine(options, faults=state)
    with pytest.raises(EngineDied, match="right after its start"):
        again.generate([make_request(0)])


def test_a_dead_engine_stays_dead() -> None:
    engine = make_engine({"faults": {"die_after_rows": 0}})
    engine.add(make_request(0))
    with pytest.raises(EngineDied):
        engine.step()
    with pytest.raises(EngineDied):
        engine.add(make_request(1))
    with pytest.raises(EngineDied):
        engine.step()


def test_each_count_kills_one_engine() -> None:
    state = FaultState()
    options = {"faults": {"die_after_rows": [5, 9]}}
    done: list[Completion] = []
    for _ in range(2):
        engine = make_engine(options, faults=state)
        for row in range(20):
            engine.add(make_request(row))
        with pytest.raises(EngineDied):
            step_for_ever(engine, done)
    assert len(done) == 9
    assert len(make_engine(options, faults=state).generate([make_request(0)])) == 1


def test_starts_fail_as_announced() -> None:
    state = FaultState()
    options = {"faults": {"die_after_rows": 0, "refuse_start": 2}}
    with pytest.raises(EngineDied):
        make_engine(options, faults=state).generate([make_request(0)])
    for _ in range(2):
        with pytest.raises(EngineError, match="refuses to start"):
            make_engine(options, faults=state)
    assert len(make_engine(options, faults=state).generate([make_request(0)])) == 1


def test_the_first_start_can_fail() -> None:
    with pytest.raises(EngineError, match="first start"):
        make_engine({"faults": {"refuse_first_start": True}})


@pytest.mark.parametrize(("fault", "num_deaths"), [("crash", 3), ("crash_once", 1)])
def test_a_crashing_row_brings_the_engine_down(fault: str, num_deaths: int) -> None:
    state = FaultState()
    options = {"script": {"a.jsonl:0": {"fault": fault}}}
    for _ in range(3):
        engine = make_engine(options, faults=state)
        try:
            engine.generate([make_request(0)])
        except EngineDied:
            continue
    assert state.num_deaths == num_deaths


def test_leftovers_of_a_failed_call_come_out_first_under_their_old_ids() -> None:
    engine = make_engine({"faults": {"raise_in_call": {"call": 2, "after_rows": 10}}})
    engine.generate([make_request(row) for row in range(32)])
    with pytest.raises(EngineError, match="the engine lives on"):
        engine.generate([make_request(row) for row in range(32, 64)])
    ids = [c.request_id for c in engine.generate([make_request(row) for row in range(64, 96)])]
    assert len(ids) == 22 + 32
    assert set(ids[:22]) <= {f"r{row}" for row in range(32, 64)}


def test_a_hanging_engine_can_be_interrupted() -> None:
    engine = make_engine({"faults": {"hang_after_rows": 1}})
    engine.clock.every(600, lambda: engine.interrupt("no progress for 600 s"))
    with pytest.raises(EngineDied, match="no progress for 600 s"):
        engine.generate([make_request(0), make_request(1)])
    assert 600 <= engine.clock.now() < 601


@pytest.mark.parametrize(
    ("fault", "number"), [("terminate", signal.SIGTERM), ("interrupt", signal.SIGINT)]
)
def test_a_signal_arrives_when_its_row_has_finished(fault: str, number: signal.Signals) -> None:
    received: list[int] = []
    before = signal.signal(number, lambda *_: received.append(state.rows_finished))
    state = FaultState()
    try:
        engine = make_engine({"faults": {f"{fault}_after_rows": 10}}, faults=state)
        engine.generate([make_request(row) for row in range(20)])
    finally:
        signal.signal(number, before)
    assert received == [10]


def test_the_process_can_be_killed_in_the_middle_of_a_call() -> None:
    pid = os.fork()
    if pid == 0:
        make_engine({"faults": {"kill_process_after_rows": 5}}).generate(
            [make_request(row) for row in range(20)]
        )
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_received_requests_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "received.jsonl"
    engine = make_engine({"record": str(path)}, max_model_len=5)
    assert path.read_text() == ""
    engine.generate([make_request(0), make_request(1, "a b c d e f"), make_request(2, "a b c")])
    engine.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"shard": "a.jsonl", "row": 0, "num_prompt_tokens": 2},
        {"shard": "a.jsonl", "row": 2, "num_prompt_tokens": 3},
    ]


def test_a_closed_engine_may_be_closed_again() -> None:
    engine = make_engine()
    engine.close()
    engine.close()
    with pytest.raises(EngineDied, match="closed"):
        engine.add(make_request(0))


def test_the_zero_cost_engine_answers_everything_in_one_step() -> None:
    engine = ZeroCostEngine(max_model_len=64, max_num_seqs=8, clock=RealClock())
    for row in range(100):
        engine.add(make_request(row))
    completions = engine.step()
    assert [c.request_id for c in completions] == [f"r{row}" for row in range(100)]
    assert text_of(completions[7]) == "Reply to: row 7"
    assert engine.num_unfinished == 0
    assert engine.stats().num_prompt_tokens == 200
