"""A trial does the work that it says, in the way that it names."""

import pytest

from batchgen.bench.trials import run_continuous, run_generate, run_sequential
from batchgen.bench.workload import BenchSession, Workload, spread
from batchgen.config.models import JobConfig
from batchgen.errors import DataError
from batchgen.records import Prompt, Sampling

STEP_S = 0.01


def job(paths, **extra):
    return JobConfig.model_validate(
        {
            "input": {"paths": [str(path) for path in paths]},
            "prompt": {"template": "Say it again: {{ text }}"},
            "model": {
                "engine": "simulated",
                "max_num_seqs": 8,
                "extra": {"clock": "simulated", "step_s": STEP_S, "decode_token_s": 0, **extra},
            },
            "sampling": {"temperature": 0, "max_tokens": 64},
            "output": {"path": str(paths[0].parent / "out")},
        }
    )


@pytest.fixture
def shard(write_jsonl):
    return write_jsonl("docs.jsonl", [{"text": f"document number {i}"} for i in range(40)])


def test_the_sample_is_spread_over_the_rows_looked_at(shard):
    with BenchSession(job([shard]), num_rows=10) as session:
        rows = [prompt.row for prompt in session.workload.prompts]
    assert rows == list(range(0, 40, 4))


def test_a_smaller_input_than_asked_for_is_taken_whole():
    assert spread([1, 2, 3], 5) == [1, 2, 3]


def test_an_input_without_sound_rows_is_refused_by_name(write_jsonl):
    shard = write_jsonl("docs.jsonl", [{"text": None}, {"text": None}])
    with pytest.raises(DataError, match=r"all 2 rows looked at would be refused.*null_prompt"):
        BenchSession(job([shard]), num_rows=4).__enter__()


@pytest.mark.parametrize("num_rows", [4, lambda info: info.max_num_seqs])
@pytest.mark.parametrize("rows", [[], [{"text": None}]])
def test_an_engine_is_not_started_where_there_is_nothing_to_measure(write_jsonl, rows, num_rows):
    session = BenchSession(job([write_jsonl("docs.jsonl", rows)], start_s=60), num_rows=num_rows)
    with pytest.raises(DataError, match="nothing to measure"):
        session.__enter__()
    assert session.clock.now() == 0


def test_a_sound_row_behind_many_refused_ones_is_found(write_jsonl):
    rows = [{"text": None}] * 100 + [{"text": "sound"}]
    with BenchSession(job([write_jsonl("docs.jsonl", rows)]), num_rows=50) as session:
        assert [prompt.row for prompt in session.workload.prompts] == [100]


def test_pinned_rows_get_exactly_their_lengths(shard):
    lengths = [1, 5, 3, 9]
    with BenchSession(job([shard]), num_rows=4) as session:
        trial = run_generate(session.engine, session.workload.pinned(lengths), 4)
    assert [row.num_output_tokens for row in trial.rows] == lengths


def test_sequential_takes_a_step_for_each_token(shard):
    with BenchSession(job([shard], prefill_token_s=0), num_rows=4) as session:
        trial = run_sequential(session.engine, session.workload.pinned([5, 5, 5, 5]))
    assert trial.wall_s == pytest.approx(20 * STEP_S)
    assert trial.num_running_mean == pytest.approx(1)


def test_a_batch_shares_its_steps(shard):
    with BenchSession(job([shard], prefill_token_s=0), num_rows=4) as session:
        trial = run_generate(session.engine, session.workload.pinned([5, 5, 5, 5]), 4)
    assert trial.wall_s == pytest.approx(5 * STEP_S)
    assert trial.rows_per_s == pytest.approx(4 / (5 * STEP_S))


def test_a_batch_waits_for_its_longest_row_and_a_window_does_not(shard):
    lengths = [2, 10] * 4
    with BenchSession(job([shard], prefill_token_s=0), num_rows=8) as session:
        work = session.workload.pinned(lengths)
        batches = run_generate(session.engine, work, 2)
        window = run_continuous(session.engine, work, 2)
    assert batches.wall_s == pytest.approx(4 * 10 * STEP_S)
    assert window.wall_s < batches.wall_s
    assert batches.drain_s == pytest.approx(4 * 8 * STEP_S)
    assert window.drain_s < batches.drain_s


def test_a_repeat_finds_nothing_in_the_prefix_cache(write_jsonl):
    shard = write_jsonl("docs.jsonl", [{"text": f"{i} " + "word " * 60} for i in range(4)])
    with BenchSession(job([shard], kv_block_tokens=4), num_rows=4) as session:
        first = run_continuous(session.engine, session.workload, 4)
        second = run_continuous(session.engine, session.workload, 4)
    assert first.num_cached_tokens == second.num_cached_tokens
    assert first.wall_s == pytest.approx(second.wall_s)


def test_failed_rows_are_counted_and_not_timed(shard):
    script = {"docs.jsonl:0": {"fault": "row_error"}}
    with BenchSession(job([shard], script=script), num_rows=4) as session:
        trial = run_continuous(session.engine, session.workload, 4)
    assert (trial.num_rows, trial.num_failed) == (4, 1)


@pytest.mark.cpu
def test_a_repeat_on_vllm_computes_every_prompt_again(tiny_vllm):
    sampling = Sampling({"temperature": 0.0, "max_tokens": 4}, b"greedy")
    prompts = tuple(
        Prompt("s", i, 0, [7 + i, *range(10, 200)], "", sampling, None) for i in range(4)
    )
    work = Workload(prompts, 4, 0)
    trials = [run_continuous(tiny_vllm, work, 4) for _ in range(2)]
    assert [trial.num_cached_tokens for trial in trials] == [0, 0]
