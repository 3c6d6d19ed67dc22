"""Why the gain stops: each fact from its own numbers, and none without them."""

import doctest
from dataclasses import replace

import pytest

from batchgen.bench import gain
from batchgen.bench.comparison import WayResult
from batchgen.bench.gain import (
    cache_fact,
    drain_facts,
    dynamic_facts,
    fastest,
    law_facts,
    length_fact,
    limit_facts,
    roofline_fact,
    slot_use,
)
from batchgen.bench.step_law import StepPoint, fit_step_law
from batchgen.bench.ways import Way

RESULT = WayResult(
    name="continuous",
    batch_size=16,
    arrival_rows_per_s=None,
    num_repeats=3,
    num_rows=64,
    num_failed=0,
    wall_s=10.0,
    wall_s_spread=0.1,
    rows_per_s=6.4,
    prompt_tokens_per_s=64.0,
    output_tokens_per_s=640.0,
    ttft_s_p50=0.1,
    ttft_s_p95=0.2,
    tpot_s_p50=0.02,
    tpot_s_p95=0.03,
    latency_s_p50=2.0,
    latency_s_p95=3.0,
    speedup=5.0,
    speedup_min=4.9,
    speedup_max=5.1,
    roofline_fraction=0.75,
    num_running_mean=8.0,
    drain_s=2.5,
    kv_cache_usage_max=0.4,
    num_preemptions=0,
    num_steps=1000,
    num_compared=64,
    num_different=0,
    num_equal_tokens_median=None,
)


def one(facts):
    (fact,) = facts
    return fact


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(gain).failed == 0


def test_the_law_gives_the_asymptote_and_the_last_doubling():
    points = [StepPoint(n, 0.02 + 0.002 * n) for n in (1, 4, 32, 64)]
    asymptote, saturation = law_facts(fit_step_law(points), points)
    assert asymptote.value == pytest.approx(11)
    assert "1 + a/b = 11.0" in asymptote.text
    assert saturation.value == pytest.approx(2 * 0.084 / 0.148 - 1)
    assert "+14%" in saturation.text


def test_without_steps_there_is_no_law_to_speak_of():
    assert list(law_facts(None, [])) == []


def test_lengths_tell_the_slots_that_calls_use():
    fact = one(length_fact([1, 3, 2, 2], (2, 4)))
    assert fact.value == slot_use([1, 3, 2, 2], 4) == pytest.approx(8 / 12)
    assert "80% and 67%" in fact.text


def test_equal_lengths_are_no_reason():
    assert list(length_fact([5, 5], (2,))) == []


def test_drain_is_a_share_of_the_time_of_each_way():
    calls = replace(RESULT, name="generate", drain_s=5.0)
    of_calls, of_windows = drain_facts([calls, RESULT])
    assert (of_calls.value, of_windows.value) == (0.5, 0.25)
    assert "50%" in of_calls.text


@pytest.mark.parametrize(
    ("usage", "preemptions", "words"),
    [(0.4, 0, "was not the limit"), (0.99, 0, "was the limit"), (0.9, 7, "was the limit")],
)
def test_the_cache_is_the_limit_when_it_is_full(usage, preemptions, words):
    result = replace(RESULT, kv_cache_usage_max=usage, num_preemptions=preemptions)
    assert words in one(cache_fact([result], 1000)).text


def test_what_an_engine_does_not_tell_makes_no_fact():
    silent = replace(RESULT, kv_cache_usage_max=None, drain_s=None, roofline_fraction=None)
    assert list(cache_fact([silent], None)) == []
    assert list(drain_facts([silent])) == []
    assert list(roofline_fact([silent], "measured here")) == []


def test_the_rates_of_the_roofline_are_named():
    fact = one(roofline_fact([RESULT], "measured here, bfloat16, 2 threads"))
    assert fact.value == 0.75
    assert "2 threads" in fact.text


def test_arrivals_are_never_the_fastest():
    paced = replace(RESULT, arrival_rows_per_s=5.0, output_tokens_per_s=1e6)
    assert fastest([paced, RESULT]) == RESULT


def test_the_limit_of_the_fastest_way_is_diagnosed():
    facts = list(limit_facts([RESULT]))
    assert facts[0].kind == "limit"
    assert "continuous 16" in facts[0].text


def test_dynamic_batches_are_set_against_the_same_arrivals():
    dynamic = replace(RESULT, name="dynamic", arrival_rows_per_s=5.0, latency_s_p50=4.0)
    continuous = replace(RESULT, arrival_rows_per_s=5.0)
    closed = {Way("dynamic", 16, 5.0): (3, 5)}
    fact = one(dynamic_facts([dynamic, continuous], closed))
    assert fact.value == 8
    assert "3 closed by size and 5 by the time-out" in fact.text
    assert "4.00 s after their arrival, with continuous after 2.00 s" in fact.text
