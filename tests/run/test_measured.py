"""A plan takes in what an earlier run of the same job measured, and nothing else."""

import json

import pytest

from batchgen.config.loading import load_job
from batchgen.run.job import run_job
from batchgen.run.measured import find_measured
from batchgen.run.options import RunOptions

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 400,
}


@pytest.fixture
def job(tmp_path):
    """A job with the simulated engine; words are tokens, and every reply has 8 of them."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    rows = [{"prompt": f"tell me about number {number}"} for number in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(*, template="{{ prompt }}", max_tokens=32, name=model, extra=""):
        file = tmp_path / "job.yaml"
        file.write_text(
            f"input: {{paths: ['{tmp_path}/a.jsonl']}}\n"
            f"prompt: {{template: '{template}'}}\n"
            f"model: {{name: '{name}', engine: simulated, max_num_seqs: 4, extra: {{clock: "
            f"simulated, reply_tokens: 8, reply_sigma: 0{extra}}}}}\n"
            f"sampling: {{max_tokens: {max_tokens}, temperature: 0}}\n"
            f"output: {{path: {tmp_path}/out}}\n"
        )
        return load_job(file)

    return make


def test_before_a_run_nothing_is_measured(job):
    assert find_measured(job()) is None


def test_a_run_measures_work_time_and_lengths(job):
    summary = run_job(job())
    found = find_measured(job())
    assert found.what == "run"
    assert found.took_s == summary.generate_s
    assert found.work.num_rows == 40
    assert found.work.num_prompt_tokens == summary.num_prompt_tokens == 200
    assert found.work.num_output_tokens == summary.num_output_tokens
    assert found.output_mean == pytest.approx(summary.num_output_tokens / 40)
    assert 1 < found.work.num_running_mean <= 4
    assert found.output_tokens_per_s == pytest.approx(summary.output_tokens_per_s)
    assert found.is_cpu is None


def test_a_limited_run_counts_as_well(job):
    run_job(job(), RunOptions(limit=20))
    found = find_measured(job())
    assert found.path.endswith("out-limit-20")
    assert found.work.num_rows == 20


def test_the_newest_run_with_enough_rows_counts(job):
    run_job(job())
    run_job(job(), RunOptions(limit=2))
    assert find_measured(job()).work.num_rows == 40


def test_other_sampling_makes_other_lengths_at_the_same_speed(job):
    run_job(job())
    found = find_measured(job(max_tokens=64))
    assert found.output_mean is None
    assert found.cached_share is None
    assert found.took_s > 0


def test_a_run_of_another_model_is_passed_over(job, tmp_path):
    run_job(job())
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(CONFIG))
    assert find_measured(job(name=other)) is None


def test_a_run_of_another_engine_is_passed_over(job):
    run_job(job())
    loaded = job()
    model = loaded.model.model_copy(update={"engine": "vllm", "extra": {}})
    assert find_measured(loaded.model_copy(update={"model": model})) is None


def test_copies_of_equal_prompts_are_no_work(job):
    run_job(job(template="the same {{ prompt[:4] }}"))
    found = find_measured(job(template="the same {{ prompt[:4] }}"))
    assert found.duplicate_share == pytest.approx(39 / 40)
    assert found.work.num_rows == 1


@pytest.mark.parametrize("content", ["{", "[]", '{"runs": []}', '{"engine": {"name": "x"}}'])
def test_a_broken_manifest_measures_nothing(job, tmp_path, content):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text(content)
    assert find_measured(job()) is None


def comparison(**changes):
    way = {
        "name": "continuous",
        "batch_size": 8,
        "num_rows": 64,
        "wall_s": 10.0,
        "prompt_tokens_per_s": 640.0,
        "output_tokens_per_s": 320.0,
        "num_running_mean": 7.5,
    }
    return {
        "job": "job",
        "created_at": "2026-01-01T00:00:00+00:00",
        "engine": {"name": "simulated"},
        "ways": [{**way, "name": "sequential", "output_tokens_per_s": 999.0}, way],
        **changes,
    }


def test_a_comparison_measures_its_continuous_way(job, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "compare.json").write_text(json.dumps(comparison()))
    found = find_measured(job())
    assert found.what == "compare"
    assert found.work.num_output_tokens == 3200
    assert found.work.num_prompt_tokens == 6400
    assert found.work.num_running_mean == 7.5
    assert found.output_mean is None


@pytest.mark.parametrize("change", [{"job": "another"}, {"engine": None}, {"ways": []}])
def test_a_comparison_of_something_else_is_passed_over(job, tmp_path, change):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "compare.json").write_text(json.dumps(comparison(**change)))
    assert find_measured(job()) is None


def test_a_run_that_is_newer_than_the_comparison_counts(job, tmp_path):
    run_job(job())
    (tmp_path / "out" / "compare.json").write_text(json.dumps(comparison()))
    assert find_measured(job()).what == "run"
