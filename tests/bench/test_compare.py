"""A whole comparison on the simulated clock: its numbers are those of the engine's cost model."""

import pytest

from batchgen.bench.compare import compare_job
from batchgen.bench.measured import CompareOptions
from batchgen.bench.ways import Way
from batchgen.config.models import JobConfig
from batchgen.errors import EngineError
from batchgen.monitor.console import SilentConsole

STEP_S, DECODE_TOKEN_S = 0.02, 0.002
SEQUENTIAL = Way("sequential", 1)


@pytest.fixture
def shard(write_jsonl):
    return write_jsonl("docs.jsonl", [{"text": f"document number {i}"} for i in range(64)])


@pytest.fixture
def job(shard):
    """A job on the simulated engine; keyword arguments go into its cost model."""

    def make(*, sampling=None, max_num_seqs=16, rows=shard, **extra):
        costs = {"step_s": STEP_S, "decode_token_s": DECODE_TOKEN_S, "prefill_token_s": 0}
        return JobConfig.model_validate(
            {
                "input": {"paths": [str(rows)]},
                "prompt": {"template": "Say it again: {{ text }}"},
                "model": {
                    "engine": "simulated",
                    "max_num_seqs": max_num_seqs,
                    "extra": {"clock": "simulated", **costs, **extra},
                },
                "sampling": sampling or {"temperature": 0, "max_tokens": 200},
                "output": {"path": str(shard.parent / "out")},
            }
        )

    return make


@pytest.fixture
def compare(job):
    def run(options=None, console=None, **settings):
        options = options or CompareOptions(num_rows=32, num_repeats=2)
        return compare_job(
            job(**settings), options, output_path="out", console=console or SilentConsole()
        )

    return run


def results(comparison):
    return {result.way: result for result in comparison.ways}


def equal(tokens):
    return {"temperature": 0, "max_tokens": tokens, "ignore_eos": True}


def test_every_way_is_measured_as_often_as_asked_for(compare):
    comparison = compare()
    ways = [SEQUENTIAL]
    ways += [Way(name, size) for name in ("generate", "continuous") for size in (2, 4, 16)]
    assert list(results(comparison)) == ways
    assert {result.num_repeats for result in comparison.ways} == {2}
    assert comparison.exit_code == 0


def test_equal_lengths_give_the_speed_up_of_the_law(compare):
    comparison = compare(sampling=equal(50))
    for size in (2, 4, 16):
        expected = size * (STEP_S + DECODE_TOKEN_S) / (STEP_S + size * DECODE_TOKEN_S)
        for name in ("generate", "continuous"):
            result = results(comparison)[Way(name, size)]
            assert result.speedup == pytest.approx(expected)
            assert result.speedup_min == pytest.approx(result.speedup_max)


def test_the_law_of_the_cost_model_is_found(compare):
    law = compare().step_law
    assert law.a_s == pytest.approx(STEP_S)
    assert law.b_s == pytest.approx(DECODE_TOKEN_S)
    assert law.asymptote == pytest.approx(11)
    assert law.max_error == pytest.approx(0, abs=1e-6)


def test_every_way_decodes_the_same_tokens(compare):
    comparison = compare()
    tokens = {trial.num_output_tokens for ts in comparison.trials.values() for trial in ts}
    assert tokens == {comparison.rows.num_output_tokens}
    assert comparison.rows.is_pinned
    assert comparison.rows.output_tokens_min < comparison.rows.output_tokens_max


def test_unequal_lengths_cost_calls_more_than_windows(compare):
    found = results(compare())
    calls, window = found[Way("generate", 4)], found[Way("continuous", 4)]
    assert calls.speedup < window.speedup
    assert calls.drain_s > window.drain_s
    kinds = [fact.kind for fact in compare().facts]
    assert {"asymptote", "saturation", "prefill", "lengths", "drain"} <= set(kinds)


def test_the_same_seeds_give_the_same_texts(compare):
    comparison = compare(sampling={"temperature": 0.8, "seed": 0, "max_tokens": 50})
    assert {result.num_different for result in comparison.ways} == {0}
    assert {result.num_compared for result in comparison.ways} == {32}
    assert comparison.difference_reason is None


def test_without_a_seed_texts_are_not_compared(compare):
    comparison = compare(sampling={"temperature": 0.8, "max_tokens": 50})
    assert {result.num_different for result in comparison.ways} == {None}
    assert "seed" in comparison.difference_reason


def test_an_arrival_rate_sets_dynamic_against_continuous(compare):
    options = CompareOptions(num_rows=32, num_repeats=1, sizes=(16,), arrival_rows_per_s=4.0)
    found = results(compare(options))
    dynamic, continuous = found[Way("dynamic", 16, 4.0)], found[Way("continuous", 16, 4.0)]
    assert dynamic.latency_s_p50 > continuous.latency_s_p50
    assert dynamic.speedup is None
    assert dynamic.roofline_fraction is None


def test_sizes_beyond_the_sample_are_left_out_and_named(compare):
    options = CompareOptions(num_rows=8, num_repeats=1, sizes=(4, 16))
    comparison = compare(options)
    assert Way("generate", 16) not in results(comparison)
    assert any("left out: 16" in note for note in comparison.notes)


def test_more_slots_than_rows_are_mentioned(compare):
    comparison = compare(CompareOptions(num_rows=8, num_repeats=1))
    assert max(result.batch_size for result in comparison.ways) == 8
    assert any("--rows 16" in note for note in comparison.notes)


def test_failed_rows_are_left_out(compare):
    script = {"docs.jsonl:0": {"fault": "row_error"}}
    comparison = compare(script=script)
    assert (comparison.rows.num_rows, comparison.rows.num_failed) == (31, 1)
    assert any("1 rows failed" in note for note in comparison.notes)


def test_lengths_of_structured_outputs_stay_free(compare):
    sampling = {"temperature": 0, "max_tokens": 20, "json_schema": '{"type": "integer"}'}
    comparison = compare(sampling=sampling)
    assert not comparison.rows.is_pinned
    assert any("lengths are free" in note for note in comparison.notes)


def test_free_lengths_are_free(compare):
    options = CompareOptions(num_rows=8, num_repeats=1, sizes=(4,), free_lengths=True)
    comparison = compare(options)
    assert not comparison.rows.is_pinned
    assert not any("lengths are free" in note for note in comparison.notes)


def test_the_time_is_told_before_it_passes(compare):
    console = SilentConsole()
    comparison = compare(console=console, sampling=equal(50))
    (line,) = [line for line in console.lines if "about" in line]
    took_s = sum(trial.wall_s for trials in comparison.trials.values() for trial in trials)
    minutes, seconds = divmod(round(took_s), 60)
    assert line == f"32 rows in 7 ways, 2 times: about 00:{minutes:02d}:{seconds:02d}"


def test_too_little_time_cuts_the_slowest_way_and_says_so(compare):
    options = CompareOptions(num_rows=32, num_repeats=2, sizes=(4, 16), max_minutes=1)
    comparison = compare(options, sampling=equal(50))
    found = results(comparison)
    assert found[SEQUENTIAL].num_rows < 32
    assert found[Way("generate", 16)].num_rows == 32
    assert any("sequential: " in note for note in comparison.notes)
    assert found[Way("generate", 16)].speedup == pytest.approx(16 * 0.022 / 0.052)


def test_a_signal_keeps_what_was_measured(compare):
    comparison = compare(faults={"interrupt_after_rows": 150})
    assert comparison.exit_code == 130
    assert "SIGINT" in comparison.stopped
    assert SEQUENTIAL in results(comparison)
    assert Way("continuous", 16) not in results(comparison)


def test_a_signal_in_the_warm_up_leaves_nothing_to_show(compare):
    comparison = compare(faults={"interrupt_after_rows": 5})
    assert (comparison.exit_code, comparison.ways) == (130, ())


def test_a_dead_engine_keeps_what_was_measured(compare):
    comparison = compare(faults={"die_after_rows": 150})
    assert comparison.exit_code == EngineError.exit_code
    assert SEQUENTIAL in results(comparison)


def test_an_engine_that_dies_at_once_is_an_error(compare):
    with pytest.raises(EngineError):
        compare(faults={"die_after_rows": 5})


def test_an_engine_of_one_slot_has_nothing_to_batch(compare):
    comparison = compare(max_num_seqs=1)
    assert list(results(comparison)) == [SEQUENTIAL]
    assert comparison.step_law is None


def test_what_cannot_be_known_of_a_simulated_engine_is_null_with_a_reason(compare):
    comparison = compare()
    assert {result.roofline_fraction for result in comparison.ways} == {None}
    assert any("the roofline is not known" in note for note in comparison.notes)
    assert any("static was left out" in note for note in comparison.notes)
