"""What a sweep proposes beyond what it can measure, and on what evidence."""

from dataclasses import replace

from batchgen.bench.proposals import cached_share, larger_steps, more_slots, prefix_order
from batchgen.bench.sweep_points import SweepPoint
from batchgen.records import EngineInfo, Prompt, Sampling

GREEDY = Sampling({"temperature": 0.0}, b"greedy")
INFO = EngineInfo("vllm", "0", 4096, 64, 16, 10_000, {"max_num_batched_tokens": 2048})


def point(num_running, tokens_per_s, **values):
    fields = dict.fromkeys(SweepPoint.__dataclass_fields__)
    known = {"num_running": num_running, "output_tokens_per_s": tokens_per_s, "kv_limited": False}
    return SweepPoint(**{**fields, **known, **values})


def prompts(*token_ids):
    return [Prompt("s", n, 0, list(ids), "", GREEDY, None) for n, ids in enumerate(token_ids)]


def slots_for(points, *, sequences_per_row=1, noise=0.01):
    return more_slots(
        points, points[-1], slots=64, sequences_per_row=sequences_per_row, noise=noise
    )


def test_more_slots_where_the_last_ones_paid():
    proposal = slots_for([point(32, 100), point(64, 150)])
    assert proposal.override == "model.max_num_seqs=128"
    assert (proposal.gain, proposal.pays) == (None, None)
    assert "50%" in proposal.reason


def test_no_more_slots_than_the_kv_cache_has_room_for():
    proposal = slots_for([point(32, 100), point(64, 150, kv_cache_usage_max=0.6)])
    assert proposal.value == 96


def test_no_slots_are_proposed_without_a_gain_beyond_the_noise():
    assert slots_for([point(32, 100), point(64, 103)], noise=0.05) is None


def test_no_slots_are_proposed_where_the_kv_cache_is_full():
    points = [point(32, 100), point(64, 150)]
    assert slots_for([points[0], replace(points[1], kv_limited=True)]) is None
    assert slots_for([points[0], replace(points[1], kv_cache_usage_max=0.8)]) is None


def test_no_slots_are_proposed_where_fewer_are_recommended():
    points = [point(32, 150), point(64, 150)]
    assert more_slots(points, points[0], slots=64, sequences_per_row=1, noise=0.01) is None


def test_slots_are_counted_in_sequences():
    proposal = slots_for([point(8, 100), point(16, 150)], sequences_per_row=4)
    assert (proposal.value, proposal.was) == (128, 64)


def test_larger_steps_where_they_are_often_full():
    proposal = larger_steps(point(64, 1, tokens_per_step=1500.0), prompts([1]), INFO.settings)
    assert proposal.override == "model.extra.max_num_batched_tokens=4096"


def test_larger_steps_where_a_prompt_does_not_fit_into_one():
    assert larger_steps(point(64, 1, tokens_per_step=1.0), prompts(range(3000)), INFO.settings)


def test_no_larger_steps_without_evidence():
    assert larger_steps(point(64, 1, tokens_per_step=99.0), prompts([1]), INFO.settings) is None
    assert larger_steps(point(64, 1), prompts([1]), INFO.settings) is None
    assert larger_steps(point(64, 1, tokens_per_step=9999.0), prompts([1]), {}) is None


def grouped(num_groups, size, shared=64):
    """Rows of groups that share their first tokens, one of each group after the other."""
    return prompts(
        *(
            [*range(1000 * group, 1000 * group + shared), 100_000 + row, group]
            for row in range(size)
            for group in range(num_groups)
        )
    )


def test_prefix_order_where_it_would_take_more_from_the_cache():
    rows = sorted(grouped(20, 5), key=lambda prompt: prompt.token_ids)
    proposal = prefix_order(point(8, 1, cached_share=0.1), rows, order="input", info=INFO)
    assert proposal.override == "batch.order=prefix"
    assert "10% were" in proposal.reason


def test_no_prefix_order_where_the_cache_serves_that_much_already():
    rows = sorted(grouped(20, 5), key=lambda prompt: prompt.token_ids)
    measured = point(8, 1, cached_share=cached_share(rows, 16, None))
    assert prefix_order(measured, rows, order="input", info=INFO) is None


def test_no_prefix_order_twice_or_without_a_cache():
    rows, measured = grouped(20, 5), point(8, 1, cached_share=0.0)
    off = replace(INFO, settings={"prefix_caching": False})
    assert prefix_order(measured, rows, order="prefix", info=INFO) is None
    assert prefix_order(measured, rows, order="input", info=off) is None


def test_only_whole_blocks_are_shared():
    assert cached_share(grouped(3, 5, shared=15), 16, None) == 0.0


def test_a_small_cache_forgets_groups_that_take_turns():
    rows = grouped(50, 4)
    ordered = sorted(rows, key=lambda prompt: prompt.token_ids)
    assert cached_share(rows, 16, 1000) == 0.0
    assert cached_share(ordered, 16, 1000) > 0.7


def test_a_measured_proposal_pays_beyond_the_noise_alone():
    proposal = slots_for([point(32, 100), point(64, 150)])
    assert proposal.measured(0.10, 0.05).pays is True
    assert proposal.measured(0.04, 0.05).pays is False
