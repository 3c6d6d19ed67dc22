"""Rows are taken back where a rule says so: at the same token whatever runs beside them."""

import doctest
import re

import pytest

from batchgen.config.models import StopEarlyConfig
from batchgen.config.simulated import ScriptedReply, SimulatedOptions
from batchgen.config.stop_early import RepetitionStop
from batchgen.engine.clock import SimulatedClock
from batchgen.engine.simulated import SimulatedEngine
from batchgen.engine.zero_cost import ZeroCostEngine
from batchgen.records import Completion, Request, RowKey, Sample, Sampling
from batchgen.schedule import early_stop
from batchgen.schedule.early_stop import LOOK_TOKENS, EarlyStop, is_looping, saved_tokens_max

SENTENCE = "The river keeps its name while the water in it changes. "
GREEDY = Sampling({"temperature": 0.0, "max_tokens": 400}, b"greedy")


def numbered(count: int) -> str:
    return " ".join(f"w{number}" for number in range(count))


def engine_of(replies: list[str], *, slots: int = 16, step_s: float = 1.0) -> SimulatedEngine:
    script = {f"a:{row}": ScriptedReply(reply=reply) for row, reply in enumerate(replies)}
    options = SimulatedOptions(
        clock="simulated", step_s=step_s, decode_token_s=0, prefill_token_s=0, script=script
    )
    return SimulatedEngine(options, max_model_len=1000, max_num_seqs=slots, clock=SimulatedClock())


def request(row: int, sampling: Sampling = GREEDY) -> Request:
    return Request(f"r{row}", [1, 2, 3], f"text {row}", sampling, None, RowKey("a", row))


def run(engine, requests, rules: StopEarlyConfig, **options) -> dict[str, Completion]:
    """All of these to their end, or as far as the rules let them."""
    watch = EarlyStop(rules, **options)
    waiting, done = set(), []
    for entering in requests:
        engine.add(entering)
        watch.follow(entering.id)
        waiting.add(entering.id)
    while engine.num_unfinished:
        finished = engine.step()
        waiting.difference_update(completion.request_id for completion in finished)
        done += [*finished, *watch.after_step(engine, waiting)]
    return {completion.request_id: completion for completion in done}


def stopped(completion: Completion) -> tuple[str | None, int]:
    return completion.stopped_by, completion.samples[0].num_tokens


def test_a_pattern_stops_its_row_alone_and_its_text_stays():
    done = run(
        engine_of([numbered(100), numbered(100).replace("w20", "END")]),
        [request(0), request(1)],
        StopEarlyConfig(pattern=r"\bEND\b"),
    )
    assert stopped(done["r0"]) == (None, 100)
    assert stopped(done["r1"]) == ("pattern", 24)
    (sample,) = done["r1"].samples
    assert sample.finish_reason == "abort"
    assert sample.text == numbered(24).replace("w20", "END")


@pytest.mark.parametrize("slots", [1, 2, 7])
def test_where_a_row_stops_does_not_depend_on_what_runs_beside_it(slots):
    replies = [numbered(13 + 5 * row).replace("w9", "END") for row in range(12)]
    done = run(
        engine_of(replies, slots=slots),
        [request(row) for row in range(12)],
        StopEarlyConfig(pattern="END"),
    )
    assert {stopped(completion) for completion in done.values()} == {("pattern", 16), (None, 13)}


def test_a_row_that_ends_before_the_next_look_ends_by_itself():
    done = run(engine_of(["a b END d"]), [request(0)], StopEarlyConfig(pattern="END"))
    assert stopped(done["r0"]) == (None, 4)


def test_a_look_at_each_token_stops_at_the_very_token():
    reply = numbered(50).replace("w20", "END")
    done = run(engine_of([reply]), [request(0)], StopEarlyConfig(pattern="END"), look_tokens=1)
    assert stopped(done["r0"]) == ("pattern", 21)


def test_a_match_across_two_looks_is_found():
    reply = numbered(40)
    done = run(engine_of([reply]), [request(0)], StopEarlyConfig(pattern="w3 .* w30"))
    assert stopped(done["r0"]) == ("pattern", 32)


def test_of_a_long_text_only_its_end_is_searched():
    words = [f"{number:0>50}" for number in range(100)]
    first, later = words[0], words[60]
    rules = StopEarlyConfig(pattern=f"{first}.*{later}")
    done = run(engine_of([" ".join(words)]), [request(0)], rules)
    assert stopped(done["r0"]) == (None, 100)


def test_seconds_count_from_the_first_step_of_the_row_not_from_its_queueing():
    replies = [numbered(100), numbered(100)]
    done = run(
        engine_of(replies, slots=1), [request(0), request(1)], StopEarlyConfig(max_seconds=30)
    )
    assert {stopped(completion) for completion in done.values()} == {("max_seconds", 32)}


def test_looping_text_stops():
    done = run(
        engine_of(["Well. " + SENTENCE * 20, numbered(200)]),
        [request(0), request(1)],
        StopEarlyConfig(repetition=True),
    )
    rule, num_tokens = stopped(done["r0"])
    assert rule == "repetition"
    assert num_tokens < 60
    assert stopped(done["r1"]) == (None, 200)


def test_one_of_several_completions_stops_them_all():
    sampling = Sampling({"temperature": 1.0, "n": 3, "max_tokens": 60}, b"three")
    engine = engine_of([numbered(60).replace("w20", "END")])
    done = run(engine, [request(0, sampling)], StopEarlyConfig(pattern="END"))
    assert [sample.finish_reason for sample in done["r0"].samples] == ["abort"] * 3
    assert done["r0"].stopped_by == "pattern"
    assert engine.num_unfinished == 0


@pytest.mark.cpu
def test_a_pattern_stops_a_row_of_a_real_engine_alone(tiny_vllm):
    def requests(max_tokens: int) -> list[Request]:
        values = {"temperature": 1.0, "ignore_eos": True, "max_tokens": max_tokens}
        sampling = Sampling(values, f"real {max_tokens}".encode())
        return [request(row, sampling)._replace(seed=row) for row in range(4)]

    twenty = run(tiny_vllm, requests(20), StopEarlyConfig())
    start = twenty["r2"].samples[0].text
    done = run(tiny_vllm, requests(60), StopEarlyConfig(pattern=re.escape(start)))
    (sample,) = done["r2"].samples
    assert stopped(done["r2"]) == ("pattern", 24)
    assert sample.finish_reason == "abort"
    assert sample.text.startswith(start)
    for name in ("r0", "r1", "r3"):
        assert stopped(done[name]) == (None, 60)
    assert tiny_vllm.num_unfinished == 0


def test_rows_that_an_engine_has_no_longer_are_forgotten():
    engine = engine_of([numbered(100)])
    watch = EarlyStop(StopEarlyConfig(pattern="w1"))
    engine.add(request(0))
    watch.follow("r0")
    for _ in range(2 * LOOK_TOKENS):
        engine.step()
        assert watch.after_step(engine, set()) == []
    assert not any(watch._due)


def test_an_engine_that_answers_in_one_step_is_never_stopped():
    engine = ZeroCostEngine(max_model_len=100, max_num_seqs=4, clock=SimulatedClock())
    done = run(engine, [request(0)], StopEarlyConfig(pattern="Reply"))
    assert done["r0"].stopped_by is None


@pytest.mark.parametrize(
    ("text", "is_loop"),
    [
        ("a" * 300, True),
        ("a" * 150, False),
        ("Title\n" + "-" * 80, False),
        (SENTENCE * 4, True),
        (SENTENCE * 3, False),
        ("Something else first. " + SENTENCE * 6 + "The river keeps", True),
        (SENTENCE * 6 + "But not this time.", False),
        ("x" * 490 + "y" + ("x" * 490 + "y") * 3, True),
        (("x" * 600 + "y") * 5, False),  # longer than max_pattern_chars
        ("".join(f"{number}. the same step again\n" for number in range(50)), False),
        ("", False),
    ],
)
def test_what_counts_as_looping(text, is_loop):
    assert is_looping(text, RepetitionStop()) is is_loop


@pytest.mark.parametrize("period", [1, 2, 3, 7, 16, 31, 200])
@pytest.mark.parametrize("min_count", [2, 4])
def test_each_period_is_found_as_soon_as_it_is_long_enough(period, min_count):
    rule = RepetitionStop(max_pattern_chars=200, min_count=min_count, min_chars=64)
    needed = max(min_count * period, 64)
    piece = "".join(chr(0x4E00 + number) for number in range(period))
    looping = piece * (needed // period + 1)
    assert is_looping("before " + looping[:needed], rule)
    assert not is_looping("before " + looping[: needed - 1], rule)


def test_saved_tokens_are_those_up_to_the_limit_of_what_still_ran():
    samples = (Sample("x", 10, "abort"), Sample("y", 7, "stop"))
    completion = Completion("r", samples, num_prompt_tokens=100)
    two = Sampling({"max_tokens": 50, "n": 2}, b"")
    assert saved_tokens_max(completion, two, 1000) == 40
    assert saved_tokens_max(completion, two, 120) == 10
    assert saved_tokens_max(completion, Sampling({"max_tokens": None}, b""), 1000) == 890


def test_examples_in_docstrings_hold():
    results = doctest.testmod(early_stop)
    assert results.attempted
    assert not results.failed
