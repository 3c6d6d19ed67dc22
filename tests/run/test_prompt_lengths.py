"""Lengths come from rows made into prompts; what the model cannot take is seen before it is cut."""

import json

import pytest

from batchgen.config.loading import load_job
from batchgen.run.prompt_lengths import ESTIMATED, read_lengths


@pytest.fixture
def job(tmp_path):
    """A job for vLLM over these texts; the model is only a tokenizer."""

    def make(texts, tokenizer, *, lines="", sampling="{max_tokens: 16}"):
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        file = tmp_path / "job.yaml"
        file.write_text(
            f"input: {{paths: ['{path}']}}\n"
            f"prompt: {{column: prompt{lines}}}\n"
            f"model: {{name: '{tokenizer}'}}\n"
            f"sampling: {sampling}\n"
            f"output: {{path: {tmp_path}/out}}\n"
        )
        return load_job(file)

    return make


def look(job, *, max_model_len=1000, max_rows=100, tokens=True, folder=None):
    return read_lengths(
        job, max_model_len=max_model_len, max_rows=max_rows, tokens=tokens, folder=folder
    )


def test_without_tokens_four_bytes_are_a_token(job):
    found = look(job(["x" * 40, "x" * 41, "äöü"], "missing/model"), tokens=False)
    assert found.basis == ESTIMATED == "estimated from bytes"
    assert found.prompts == (10, 11, 2)
    assert not found.is_counted


def test_a_missing_tokenizer_is_warned_of_and_estimated(job, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = look(job(["x" * 40], "missing/model"))
    assert found.prompts == (10,)
    assert "'missing/model' is not on this machine" in found.warnings[0]
    assert "4 bytes a token" in found.warnings[0]


@pytest.mark.slow
def test_a_tokenizer_counts(job, tiny_tokenizer_dir):
    found = look(job(["the river keeps its name"], tiny_tokenizer_dir))
    assert found.basis == f"counted with the tokenizer of {tiny_tokenizer_dir}"
    assert found.is_counted
    assert not found.warnings


@pytest.mark.slow
def test_a_tokenizer_beside_the_planned_config_counts(job, tiny_tokenizer_dir):
    found = look(job(["the river"], "missing/model"), folder=tiny_tokenizer_dir)
    assert found.basis == f"counted with the tokenizer of {tiny_tokenizer_dir}"


@pytest.mark.slow
def test_the_tokens_with_which_all_prompts_begin_are_counted(job, tiny_tokenizer_dir):
    texts = ["the river keeps its name", "the river keeps seven"]
    found = look(job(texts, tiny_tokenizer_dir))
    assert 0 < found.common_start < min(found.prompts)


def test_rows_that_are_too_long_do_not_enter(job):
    found = look(job(["x" * 40, "x" * 400], "m"), tokens=False, max_model_len=50)
    assert found.prompts == (10, 100)
    assert found.sequences == ((10, 16),)
    assert (found.num_too_long, found.num_cut) == (1, 0)
    assert found.too_long == "a.jsonl:1: 100 tokens"


def test_rows_that_are_cut_enter_with_room_for_a_completion(job):
    lines = ", on_overlong: truncate_end"
    found = look(job(["x" * 400], "m", lines=lines), tokens=False, max_model_len=50)
    assert found.sequences == ((34, 16),)
    assert (found.num_too_long, found.num_cut) == (0, 1)


def test_the_room_behind_a_prompt_limits_its_completion(job):
    found = look(job(["x" * 160], "m"), tokens=False, max_model_len=50)
    assert found.sequences == ((40, 10),)


def test_without_any_limit_the_length_of_a_completion_is_not_known(job):
    loaded = job(["x" * 40], "m", sampling="{max_tokens: null}")
    assert look(loaded, tokens=False, max_model_len=None).sequences == ((10, None),)


def test_refused_rows_are_counted(job):
    found = look(job(["x", "", "y"], "m"), tokens=False)
    assert (found.num_sampled, found.num_refused) == (3, 1)
    assert len(found.sequences) == 2


def test_the_sample_is_as_large_as_asked_for_and_rows_are_estimated(job):
    found = look(job([f"row {number:05}" for number in range(5000)], "m"), tokens=False)
    assert found.num_sampled == 100
    assert found.num_rows == pytest.approx(5000, rel=0.02)


def test_several_completions_of_a_prompt_are_known(job):
    sampling = "{max_tokens: 16, n: 4, temperature: 1.0}"
    assert look(job(["x"], "m", sampling=sampling), tokens=False).num_completions == 4


def test_rows_of_many_shards_are_told_from_the_first_ones(job, tmp_path):
    loaded = job(["x"], "m", lines="")
    for number in range(40):
        rows = "".join(json.dumps({"prompt": f"row {row:04}"}) + "\n" for row in range(30))
        (tmp_path / f"more-{number:02}.jsonl").write_text(rows)
    shards = loaded.input.model_copy(update={"paths": [f"{tmp_path}/more-*.jsonl"]})
    found = look(loaded.model_copy(update={"input": shards}), tokens=False)
    assert found.num_rows == 40 * 30
    assert found.is_estimate


def test_several_shards_make_no_larger_sample(job, tmp_path):
    loaded = job(["x"] * 50, "m")
    for name in ("b", "c"):
        (tmp_path / f"{name}.jsonl").write_text((tmp_path / "a.jsonl").read_text())
    paths = [str(tmp_path / f"{name}.jsonl") for name in "abc"]
    several = loaded.input.model_copy(update={"paths": paths})
    loaded = loaded.model_copy(update={"input": several})
    assert look(loaded, tokens=False, max_rows=100).num_sampled == 100
    assert look(loaded, tokens=False, max_rows=2).num_sampled == 2
