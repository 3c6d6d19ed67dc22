"""What every engine promises, checked on the simulated one and on real vLLM with a tiny model."""

from collections.abc import Callable, Iterator
from itertools import count, pairwise
from typing import Any

import pytest

from batchgen.config.simulated import SimulatedOptions
from batchgen.engine.clock import SimulatedClock
from batchgen.engine.simulated import SimulatedEngine
from batchgen.protocols import Engine
from batchgen.records import Completion, Request, RowKey, Sampling

MAX_MODEL_LEN = 256
NUMBERS = count()
MakeRequest = Callable[..., Request]


def simulated_engine() -> SimulatedEngine:
    return SimulatedEngine(
        SimulatedOptions(clock="simulated"),
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=16,
        clock=SimulatedClock(),
    )


@pytest.fixture(params=["simulated", pytest.param("vllm", marks=pytest.mark.cpu)])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    is_vllm = request.param == "vllm"
    engine = request.getfixturevalue("tiny_vllm") if is_vllm else simulated_engine()
    yield engine
    engine.abort([f"r{number}" for number in range(next(NUMBERS))])


def make_request(num_tokens: int = 3, *, seed: int | None = None, **values: Any) -> Request:
    """A request whose prompt nobody else has (in its first tokens)."""
    number = next(NUMBERS)
    ids = [5 + number % 300, 5 + number // 300, *range(5, 5 + num_tokens)][:num_tokens]
    text = f"row {number}"
    sampling = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True, **values}
    key = repr(sorted(sampling.items(), key=str)).encode()
    return Request(
        f"r{number}", ids, text, Sampling(sampling, key), seed, RowKey("a.jsonl", number)
    )


def finish(engine: Engine, *requests: Request) -> dict[str, Completion]:
    """Completions by request id, each of which comes out once."""
    completions = [c for c in map(engine.add, requests) if c is not None]
    while engine.num_unfinished:
        completions += engine.step()
    ids = [completion.request_id for completion in completions]
    assert sorted(ids) == sorted(request.id for request in requests)
    return {completion.request_id: completion for completion in completions}


def test_each_request_comes_out_once_under_its_own_id(engine: Engine) -> None:
    requests = [make_request(1 + number % 7) for number in range(40)]
    completions = finish(engine, *requests)
    assert all(completions[r.id].num_prompt_tokens == len(r.token_ids) for r in requests)


def test_a_sound_request_has_one_sample_and_no_error(engine: Engine) -> None:
    request = make_request()
    completion = finish(engine, request)[request.id]
    assert completion.error is None
    assert [sample.num_tokens for sample in completion.samples] == [8]


def test_max_tokens_ends_with_length(engine: Engine) -> None:
    request = make_request(max_tokens=5)
    (sample,) = finish(engine, request)[request.id].samples
    assert (sample.num_tokens, sample.finish_reason) == (5, "length")


def test_max_tokens_none_runs_up_to_the_length_of_the_model(engine: Engine) -> None:
    request = make_request(MAX_MODEL_LEN - 10, max_tokens=None)
    (sample,) = finish(engine, request)[request.id].samples
    assert (sample.num_tokens, sample.finish_reason) == (10, "length")


def test_the_longest_prompt_still_gets_one_token(engine: Engine) -> None:
    request = make_request(MAX_MODEL_LEN - 1)
    (sample,) = finish(engine, request)[request.id].samples
    assert (sample.num_tokens, sample.finish_reason) == (1, "length")


@pytest.mark.parametrize(
    ("num_tokens", "values", "error_type"),
    [
        (0, {}, "empty_prompt"),
        (MAX_MODEL_LEN, {}, "prompt_too_long"),
        (3, {"json_schema": "{"}, "bad_schema"),
    ],
)
def test_a_refusal_comes_back_at_once(
    engine: Engine, num_tokens: int, values: dict[str, Any], error_type: str
) -> None:
    completion = engine.add(make_request(num_tokens, **values))
    assert completion is not None
    assert completion.error is not None
    assert completion.error.type == error_type
    assert completion.samples == ()
    assert engine.num_unfinished == 0


def test_refusals_leave_their_neighbors_alone(engine: Engine) -> None:
    good = [make_request(), make_request()]
    bad = [make_request(0), make_request(MAX_MODEL_LEN), make_request(json_schema="{")]
    completions = finish(engine, good[0], *bad, good[1])
    assert [completions[request.id].error for request in good] == [None, None]
    assert all(completions[request.id].error is not None for request in bad)


def test_generate_answers_for_every_request(engine: Engine) -> None:
    good = [make_request() for _ in range(20)]
    bad = [make_request(0), make_request(MAX_MODEL_LEN), make_request(json_schema="{")]
    completions = {c.request_id: c for c in engine.generate([*bad[:2], *good, bad[2]])}
    assert len(completions) == 23
    assert [completions[request.id].error for request in good] == [None] * 20
    assert [completions[request.id].error is None for request in bad] == [False] * 3
    assert engine.num_unfinished == 0


def test_generate_and_step_say_the_same(engine: Engine) -> None:
    request = make_request(5)
    (generated,) = engine.generate([request])
    assert generated.samples == finish(engine, request)[request.id].samples


def test_greedy_completions_of_equal_prompts_are_equal(engine: Engine) -> None:
    request = make_request()
    twin = request._replace(id=f"r{next(NUMBERS)}", row=RowKey("b.jsonl", 0))
    completions = finish(engine, request, twin)
    assert completions[request.id].samples == completions[twin.id].samples


def test_a_seed_repeats_a_random_completion(engine: Engine) -> None:
    request = make_request(temperature=1.0, seed=11)
    other = request._replace(id=f"r{next(NUMBERS)}", seed=12)
    first = finish(engine, request, other)
    again = finish(engine, request)
    assert first[request.id].samples == again[request.id].samples
    assert first[request.id].samples != first[other.id].samples


def test_n_completions_of_a_prompt_differ(engine: Engine) -> None:
    request = make_request(temperature=1.0, n=3, seed=5)
    samples = finish(engine, request)[request.id].samples
    assert len({sample.text for sample in samples}) == 3


def test_logprobs_come_for_each_token(engine: Engine) -> None:
    request = make_request(logprobs=2)
    (sample,) = finish(engine, request)[request.id].samples
    assert sample.logprobs is not None
    assert len(sample.logprobs) == sample.num_tokens
    assert set(sample.logprobs[0][0]) == {"token_id", "token", "logprob", "rank"}


def test_times_follow_each_other(engine: Engine) -> None:
    requests = [make_request() for _ in range(40)]
    for completion in finish(engine, *requests).values():
        assert completion.queue_s is not None
        assert completion.ttft_s is not None
        assert completion.latency_s is not None
        assert 0 <= completion.queue_s <= completion.ttft_s <= completion.latency_s


def test_counters_agree_with_the_completions(engine: Engine) -> None:
    before = engine.stats()
    requests = [make_request(4) for _ in range(30)]
    finish(engine, *requests)
    after = engine.stats()
    assert (after.num_output_tokens or 0) - (before.num_output_tokens or 0) == 30 * 8
    assert (after.num_prompt_tokens or 0) - (before.num_prompt_tokens or 0) == 30 * 4
    assert (after.num_running, after.num_waiting) == (0, 0)


def test_stats_show_slots_and_queue(engine: Engine) -> None:
    for _ in range(40):
        engine.add(make_request(max_tokens=20))
    engine.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting) == (16, 24)


def test_num_steps_rises_with_work(engine: Engine) -> None:
    before = engine.num_steps
    finish(engine, make_request())
    assert engine.num_steps > before


def test_abort_hands_over_what_came_so_far(engine: Engine) -> None:
    request = make_request(max_tokens=50)
    engine.add(request)
    engine.step()
    (completion,) = engine.abort([request.id])
    (sample,) = completion.samples
    assert sample.finish_reason == "abort"
    assert 1 <= sample.num_tokens < 50
    assert engine.num_unfinished == 0


def test_abort_of_several_samples_hands_over_all_of_them(engine: Engine) -> None:
    request = make_request(max_tokens=50, temperature=1.0, n=3)
    engine.add(request)
    engine.step()
    (completion,) = engine.abort([request.id])
    assert [sample.finish_reason for sample in completion.samples] == ["abort"] * 3


def test_abort_of_what_waits_or_is_unknown_gives_nothing(engine: Engine) -> None:
    requests = [make_request(max_tokens=50) for _ in range(17)]
    for request in requests:
        engine.add(request)
    engine.step()
    assert engine.abort([requests[16].id, "never heard of"]) == []
    assert engine.num_unfinished == 16


def test_aborted_requests_never_come_out(engine: Engine) -> None:
    gone, kept = make_request(), make_request()
    engine.add(gone)
    engine.add(kept)
    engine.step()
    engine.abort([gone.id])
    ids = []
    while engine.num_unfinished:
        ids += [completion.request_id for completion in engine.step()]
    assert ids == [kept.id]


def test_progress_grows_and_leaves_the_request_running(engine: Engine) -> None:
    request = make_request(max_tokens=20)
    engine.add(request)
    texts, counts = [""], [0]
    while (done := engine.step()) == []:
        progress = engine.progress(request.id)
        assert progress is not None
        (sample,) = progress.samples
        texts.append(sample.text)
        counts.append(sample.num_tokens)
    assert counts == sorted(counts)
    assert all(later.startswith(text) for text, later in pairwise(texts))
    assert done[0].samples[0].text.startswith(texts[-1])
    assert (done[0].samples[0].num_tokens, done[0].samples[0].finish_reason) == (20, "length")


def test_progress_is_what_abort_hands_over(engine: Engine) -> None:
    request = make_request(max_tokens=50)
    engine.add(request)
    engine.step()
    engine.progress(request.id)
    engine.step()
    progress = engine.progress(request.id)
    assert engine.abort([request.id])[0] == progress


def test_progress_tells_how_long_a_request_has_run(engine: Engine) -> None:
    request = make_request(max_tokens=50)
    engine.add(request)
    engine.step()
    first = engine.progress(request.id)
    engine.step()
    second = engine.progress(request.id)
    for progress in (first, second):
        assert progress is not None
        assert progress.scheduled_at is not None
        assert progress.finished_at is not None
    assert first.scheduled_at == second.scheduled_at
    assert first.scheduled_at <= first.finished_at <= second.finished_at


def test_progress_of_several_samples_shows_all_of_them(engine: Engine) -> None:
    request = make_request(max_tokens=50, temperature=1.0, n=3)
    engine.add(request)
    engine.step()
    progress = engine.progress(request.id)
    assert progress is not None
    assert len(progress.samples) == 3


def test_there_is_no_progress_of_what_waits_has_ended_or_is_unknown(engine: Engine) -> None:
    requests = [make_request(max_tokens=50) for _ in range(17)]
    for request in requests:
        engine.add(request)
    engine.step()
    assert engine.progress(requests[16].id) is None
    engine.abort([requests[0].id])
    assert engine.progress(requests[0].id) is None
    assert engine.progress("never heard of") is None


def test_abort_keeps_log_probabilities(engine: Engine) -> None:
    request = make_request(max_tokens=50, logprobs=2)
    engine.add(request)
    engine.step()
    (sample,) = engine.abort([request.id])[0].samples
    assert sample.logprobs is not None
    assert len(sample.logprobs) == sample.num_tokens


def test_shared_prefixes_are_told_as_cached_tokens(engine: Engine) -> None:
    ids = [9 + next(NUMBERS) % 200, *range(5, 75)]
    request = make_request()._replace(token_ids=[*ids, 5])
    finish(engine, request)
    other = make_request()._replace(token_ids=[*ids, 6])
    assert finish(engine, other)[other.id].num_cached_tokens == 64
