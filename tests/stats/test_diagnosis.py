"""Each limit is told from its own evidence, and not without it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.stats.diagnosis import Evidence, diagnose, evidence_of
from batchgen.stats.remedies import Settings

FULL = Evidence(
    wall_s=100.0,
    num_rows=1000,
    slots=64,
    num_running_mean=63.0,
    drain_s=2.0,
    tail_s=2.0,
    blocked_s=0.0,
    host_s=1.0,
    prefill_s=10.0,
    kv_cache_usage_max=0.4,
    num_preemptions=0,
    cached_share=0.0,
    settings=Settings(feed="continuous", batch_size=512, window="auto", order="input"),
)
"""A run with full slots that decodes most of the time."""


def with_settings(evidence, **values):
    return replace(evidence, settings=replace(evidence.settings, **values))


def kinds(evidence):
    return [verdict.kind for verdict in diagnose(evidence)]


def only(evidence):
    (verdict,) = diagnose(evidence)
    return verdict


def test_full_slots_and_steps_of_output_tokens_are_decode():
    verdict = only(FULL)
    assert verdict.kind == "decode"
    assert verdict.share == pytest.approx(0.9, abs=0.03)


def test_steps_of_prompt_tokens_are_prefill():
    verdict = only(replace(FULL, prefill_s=80.0))
    assert verdict.kind == "prefill"
    assert "81% of the steps' time" in verdict.evidence


def test_prefill_and_decode_can_both_matter():
    assert kinds(replace(FULL, prefill_s=55.0)) == ["prefill", "decode"]


def test_without_times_of_steps_the_roofline_divides_them():
    told = replace(FULL, prefill_s=None, bound_prefill_s=30.0, bound_decode_s=10.0)
    assert kinds(told) == ["prefill"]


FEED = replace(FULL, num_running_mean=32.0, drain_s=70.0, tail_s=5.0)
TAIL = replace(FULL, num_running_mean=32.0, drain_s=70.0, tail_s=68.0)
KV_CACHE = replace(
    FULL, num_running_mean=32.0, drain_s=0.0, tail_s=0.0, blocked_s=95.0, kv_cache_usage_max=1.0
)


def test_free_slots_while_rows_are_left_are_the_feed():
    verdict = diagnose(FEED)[0]
    assert verdict.kind == "feed"
    assert verdict.share == pytest.approx((1 - 32 / 64) * 65 / 70)


def test_free_slots_at_the_end_are_the_tail():
    assert kinds(TAIL) == ["tail", "decode"]


def test_free_slots_beside_waiting_rows_and_a_full_cache_are_the_cache():
    assert kinds(KV_CACHE) == ["kv_cache", "decode"]


def test_rows_that_wait_for_their_prefill_are_not_taken_for_a_full_cache():
    assert "kv_cache" not in kinds(replace(KV_CACHE, kv_cache_usage_max=0.2))


def test_preempted_sequences_are_the_cache_even_with_full_slots():
    verdict = diagnose(replace(FULL, num_preemptions=40, kv_cache_usage_max=1.0))[0]
    assert verdict.kind == "kv_cache"
    assert verdict.share is None
    assert "40 sequences lost their cache" in verdict.evidence


def test_time_between_the_steps_is_the_host():
    verdict = diagnose(replace(FULL, host_s=40.0))[0]
    assert verdict.kind == "host"
    assert verdict.share == pytest.approx(0.4)
    assert "40.0 of 100.0 s passed between" in verdict.evidence


def test_time_that_neither_the_machine_nor_free_slots_explain_is_the_host():
    verdict = only(replace(FULL, roofline_fraction=0.2, num_steps=2000))
    assert verdict.kind == "host"
    assert "explain 20% of the time, free slots 2%" in verdict.evidence
    assert "50.0 ms a step" in verdict.evidence


def test_a_usual_distance_from_the_roofline_is_no_overhead():
    assert kinds(replace(FULL, roofline_fraction=0.6)) == ["decode"]


def test_a_small_loss_stands_behind_what_the_time_is_spent_on():
    assert kinds(replace(FULL, num_running_mean=55.0, drain_s=20.0, tail_s=20.0)) == [
        "decode",
        "tail",
    ]


@pytest.mark.parametrize(
    ("evidence", "missing"),
    [
        (FEED, {"tail_s": None}),
        (FEED, {"drain_s": None}),
        (FEED, {"slots": None}),
        (TAIL, {"num_running_mean": None}),
        (KV_CACHE, {"kv_cache_usage_max": None}),
        (KV_CACHE, {"blocked_s": None}),
        (replace(FULL, host_s=40.0), {"host_s": None}),
        (replace(FULL, host_s=40.0), {"wall_s": None}),
        (FULL, {"prefill_s": None}),
        (FULL, {"slots": None}),
    ],
)
def test_no_verdict_without_its_evidence(evidence, missing):
    before = diagnose(evidence)[0].kind
    assert before not in kinds(replace(evidence, **missing))


def test_nothing_known_is_no_verdict():
    assert diagnose(Evidence()) == ()
    assert diagnose(evidence_of([], slots=None)) == ()


shares = st.floats(0, 1)


@given(shares, shares, shares, shares, shares, st.none() | st.floats(0, 1.5))
def test_shares_never_add_up_to_more_than_the_whole(used, drain, tail, host, prefill, fraction):
    evidence = replace(
        FULL,
        num_running_mean=64 * used,
        drain_s=100 * drain,
        tail_s=100 * drain * tail,
        blocked_s=100 * (1 - drain),
        host_s=100 * host,
        prefill_s=100 * prefill,
        kv_cache_usage_max=1.0,
        roofline_fraction=fraction,
    )
    verdicts = diagnose(evidence)
    assert sum(verdict.share or 0 for verdict in verdicts) <= 1 + 1e-9
    assert len({verdict.kind for verdict in verdicts}) == len(verdicts)


@pytest.mark.parametrize(
    ("settings", "extra", "remedy"),
    [
        ({"feed": "sequential"}, {}, "set batch.feed: continuous; one row at a time"),
        ({"feed": "generate"}, {}, "set batch.feed: continuous; each call of 512 rows"),
        ({"window": 64}, {}, "set batch.window: auto (it is 64 for 64 slots)"),
        ({}, {"render_s": 90.0}, "rendering and tokenizing prompts was busy for 90%"),
        ({}, {"read_s": 90.0, "render_s": 1.0}, "reading the input was busy for 90%"),
        ({}, {}, "raise batch.look_ahead and batch.window"),
    ],
)
def test_the_remedy_for_a_feed_depends_on_the_job(settings, extra, remedy):
    evidence = with_settings(replace(FEED, **extra), **settings)
    assert remedy in diagnose(evidence)[0].remedy


def test_who_orders_the_longest_first_already_is_told_something_else():
    assert "batch.order: longest_first" in diagnose(TAIL)[0].remedy
    ordered = with_settings(TAIL, order="longest_first", max_tokens=256)
    assert "sampling.max_tokens (now 256)" in diagnose(ordered)[0].remedy


def test_fewer_rows_than_slots_are_said_to_be_few():
    verdict = diagnose(replace(TAIL, num_rows=20))[0]
    assert verdict.summary == "too few rows to fill the slots"
    assert "20 rows cannot fill 64 slots" in verdict.remedy


def test_the_remedy_for_the_cache_names_its_present_size():
    told = with_settings(KV_CACHE, max_model_len=4096, kv_cache_memory_bytes=2**30)
    remedy = diagnose(told)[0].remedy
    assert "kv_cache_memory_bytes (now 1,073,741,824)" in remedy
    assert "model.max_model_len (now 4,096)" in remedy


def test_the_remedy_for_prefill_is_the_prefix_order_unless_it_is_set():
    prefill = replace(FULL, prefill_s=80.0)
    assert "batch.order: prefix (now input)" in only(prefill).remedy
    assert "batch.order" not in only(with_settings(prefill, order="prefix")).remedy
    assert "batch.order" not in only(replace(prefill, cached_share=0.8)).remedy


@pytest.mark.parametrize(
    ("extra", "remedy"),
    [
        ({}, "raise model.max_num_seqs (now 64)"),
        ({"critical_batch": 295.0}, "cheap up to about 295"),
        ({"critical_batch": 30.0}, "lower sampling.max_tokens, or take a smaller"),
        ({"kv_cache_usage_max": 0.97}, "needs more memory as well"),
        ({"num_running_mean": 50.0, "drain_s": 15.0, "tail_s": 1.0}, "fill the free slots first"),
    ],
)
def test_the_remedy_for_decode_depends_on_what_is_full(extra, remedy):
    verdicts = {verdict.kind: verdict for verdict in diagnose(replace(FULL, **extra))}
    assert remedy in verdicts["decode"].remedy


def test_settings_come_from_a_job_as_the_manifest_keeps_it():
    job = {
        "batch": {"feed": "generate", "size": 64, "window": "auto", "order": "input"},
        "model": {"max_model_len": 2048, "extra": {"kv_cache_memory_bytes": 5}},
        "sampling": {"max_tokens": {"column": "length"}},
    }
    assert Settings.of_job(job) == Settings("generate", 64, "auto", "input", 2048, None, 5)
    assert Settings.of_job({}) == Settings()
