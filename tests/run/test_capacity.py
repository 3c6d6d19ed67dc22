"""A plan says what fits and how long it takes: as a bound, an estimate, or measured."""

import json

import pytest

from batchgen.config.loading import load_job
from batchgen.errors import DataError, JobFileError, UsageError
from batchgen.run.capacity import PlanOptions, plan_job
from batchgen.run.capacity_answer import plan_answer
from batchgen.run.job import run_job

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
NUM_ROWS = 1200
PROMPT = "abc " * 250
"""250 tokens by its bytes, and as many words."""


@pytest.fixture
def config(tmp_path):
    """A config.json that is not in the directory of a model."""

    def make(**changes):
        path = tmp_path / "llama.json"
        path.write_text(json.dumps({**LLAMA, **changes}))
        return path

    return make


@pytest.fixture
def job(tmp_path):
    """A job whose model is not here."""
    path = tmp_path / "rows" / "a.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps({"prompt": PROMPT}) + "\n" for _ in range(NUM_ROWS)))

    def make(*overrides, prompt="{column: prompt}"):
        file = tmp_path / "job.yaml"
        file.write_text(
            f"input: {{paths: ['{path}']}}\n"
            f"prompt: {prompt}\n"
            "model: {name: missing/model}\n"
            "sampling: {max_tokens: 100}\n"
            f"output: {{path: {tmp_path}/out}}\n"
        )
        return load_job(file, overrides)

    return make


def planned(job, config, **options):
    return plan_job(job, PlanOptions(config=config, tokens=False, **options))


def answer(*args, **options):
    return plan_answer(planned(*args, **options))


def test_the_keys_that_scripts_ask_for_are_there(job, config):
    found = answer(job(), config(), device="H100")
    assert found["kv_bytes_per_token"] == 131072
    assert found["weight_bytes"] == 16_060_522_496
    assert found["max_concurrent_sequences"] > 100
    assert found["lengths"] == "estimated from bytes"
    assert json.loads(json.dumps(found)) == found


def test_sequences_of_the_corpus_s_lengths_are_counted(job, config):
    found = answer(job(), config(), memory_bytes=80 * 10**9)
    sequence = 352 * 131072
    """350 tokens in blocks of 16."""
    assert found["kv_bytes_per_sequence"] == sequence
    assert found["max_concurrent_sequences"] == found["kv_cache_bytes"] // sequence


def test_memory_alone_leaves_times_unknown(job, config):
    found = answer(job(), config(), memory_bytes=40 * 10**9, price=2.0, deadline="8h")
    assert found["device"] == "40 GB"
    unknown = ("at_least_s", "estimated_s_low", "cost_high", "replicas", "decode_tokens_per_s")
    assert [found[key] for key in unknown] == [None] * 5


def test_a_device_gives_a_bound_and_a_range_around_which_the_truth_is_expected(job, config):
    found = answer(job(), config(), device="H100")
    assert 0 < found["at_least_s"] < found["estimated_s_low"] < found["estimated_s_high"]
    assert found["is_measured"] is False
    assert "datatrove" in found["efficiency_source"]
    assert found["num_running"] == found["max_concurrent_sequences"]
    assert found["running_limited_by"] == "kv_cache"


def test_completions_are_bound_by_max_tokens_unless_the_user_knows_better(job, config):
    bound = answer(job(), config(), device="H100")
    given = answer(job(), config(), device="H100", output_tokens=10)
    assert (bound["output_tokens"], bound["output_tokens_basis"]) == (100, "bound")
    assert (given["output_tokens"], given["output_tokens_basis"]) == (10, "given")
    assert given["at_least_s"] < bound["at_least_s"]
    assert given["output_bytes"] < bound["output_bytes"]


def test_completions_are_never_longer_than_allowed(job, config):
    assert answer(job(), config(), device="H100", output_tokens=500)["output_tokens"] == 100


def test_several_completions_of_a_prompt_are_all_work(job, config):
    one = answer(job("sampling.temperature=1"), config(), device="H100")
    four = answer(job("sampling.temperature=1", "sampling.n=4"), config(), device="H100")
    assert four["num_output_tokens"] == 4 * one["num_output_tokens"]
    assert four["num_prompt_tokens"] == one["num_prompt_tokens"]


def test_price_and_deadline_are_applied_to_the_estimate(job, config):
    found = answer(job(), config(), device="H100", price=2.5, deadline="1s")
    assert found["gpu_hours_high"] == pytest.approx(found["estimated_s_high"] / 3600)
    assert found["cost_high"] == pytest.approx(2.5 * found["gpu_hours_high"])
    assert found["replicas"] > 1
    assert found["deadline_s"] == pytest.approx(1.0)


def test_every_device_of_a_replica_costs(job, config):
    overrides = ("model.extra.tensor_parallel_size=2",)
    one = answer(job(), config(), device="H100", price=1.0)
    two = answer(job(*overrides), config(), device="H100", price=1.0)
    assert two["num_devices"] == 2
    assert two["gpu_hours_low"] == pytest.approx(2 * two["estimated_s_low"] / 3600)
    assert two["at_least_s"] < one["at_least_s"]


def test_a_deadline_that_is_no_time_is_refused(job, config):
    with pytest.raises(UsageError, match="--deadline"):
        planned(job(), config(), device="H100", deadline="soon")


def test_a_model_that_does_not_fit_is_said_with_what_would_hold_it(job, config):
    found = answer(job(), config(num_hidden_layers=320), device="H100")
    assert found["max_concurrent_sequences"] == 0
    assert found["estimated_s_low"] is None
    assert found["num_devices_needed"] == 4
    (warning,) = found["warnings"]
    assert "vLLM would not start" in warning
    assert "tensor_parallel_size to 4" in warning


def test_a_length_that_does_not_fit_is_said(job, config):
    loaded = job("model.max_model_len=1000000")
    (warning,) = answer(loaded, config(), device="H100")["warnings"]
    assert "no room for 1,000,000 tokens" in warning
    assert "lower model.max_model_len" in warning


def test_rows_that_are_too_long_are_counted_and_are_no_work(job, config):
    found = answer(job("model.max_model_len=200"), config(), device="H100")
    assert found["num_too_long"] == found["num_sampled"] > 0
    assert found["at_least_s"] is None
    assert found["max_concurrent_sequences"] is None


def test_the_job_s_own_limit_counts_before_the_model_s(job, config):
    assert answer(job(), config())["max_model_len"] == 8192
    assert answer(job("model.max_model_len=4096"), config())["max_model_len"] == 4096


def test_the_kv_cache_format_of_the_job_counts(job, config):
    found = answer(job("model.extra.kv_cache_dtype=fp8"), config(), device="H100")
    assert found["kv_bytes_per_token"] == 65536


def test_the_histogram_holds_the_sample(job, config):
    found = answer(job(), config(), device="H100", max_rows=50)
    assert found["num_sampled"] == 50
    assert sum(bin["num_rows"] for bin in found["histogram"]) == 50
    assert found["num_rows"] == pytest.approx(NUM_ROWS, rel=0.02)
    assert found["is_estimate"]


def test_a_directory_with_a_config_may_be_given(job, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA))
    found = answer(job(), tmp_path / "model", device="H100")
    assert found["weight_bytes"] == 16_060_522_496


def test_a_config_that_is_not_there_is_named(job, tmp_path):
    with pytest.raises(DataError, match=r"missing\.json: no such file"):
        planned(job(), tmp_path / "missing.json")


def test_without_config_the_model_has_to_be_here(job, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(JobFileError, match=r"'missing/model'.*--config"):
        planned(job(), None, device="H100")


def test_a_missing_column_is_found_as_a_run_would(job, config):
    with pytest.raises(DataError, match="prompt"):
        planned(job(prompt="{column: promt}"), config(), device="H100")


@pytest.fixture
def simulated(tmp_path, job):
    """A job that a simulated engine runs on a model whose config is known."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA))
    return job(
        f"model.name={tmp_path}/model",
        "model.engine=simulated",
        "model.max_num_seqs=8",
        "model.max_model_len=4096",
        "model.extra.clock=simulated",
        "model.extra.reply_tokens=20",
        "batch.dedupe=false",
    )


def test_a_run_corrects_the_estimate(simulated):
    before = answer(simulated, None, device="H100")
    summary = run_job(simulated)
    after = answer(simulated, None, device="H100")
    assert after["is_measured"] is True
    assert after["output_tokens_basis"] == "measured"
    assert after["output_tokens"] == pytest.approx(summary.num_output_tokens / NUM_ROWS)
    assert after["estimated_s_low"] == after["estimated_s_high"]
    assert after["efficiency_low"] != before["efficiency_low"]
    assert after["measured"]["num_rows"] == NUM_ROWS
    assert after["measured"]["took_s"] == summary.generate_s


def test_the_estimate_for_what_was_measured_is_what_it_took(simulated):
    summary = run_job(simulated)
    plan = plan_job(simulated, PlanOptions(device="H100", tokens=False))
    assert plan.timing.estimate.low_s == pytest.approx(summary.generate_s, rel=0.1)


@pytest.mark.parametrize(
    ("override", "is_warned"),
    [
        ("model.extra.speculative_config={method: ngram}", True),
        ("model.extra.data_parallel_size=2", True),
        ("model.extra.data_parallel_size=1", False),
    ],
)
def test_what_a_plan_leaves_out_is_said(job, config, override, is_warned):
    warnings = answer(job(override), config(), device="H100")["warnings"]
    assert any("the plan leaves it out" in warning for warning in warnings) is is_warned


def test_more_than_this_machine_has_is_said(job, config, monkeypatch):
    monkeypatch.setattr("batchgen.run.capacity.target_rates", lambda *_, **__: (None, []))
    found = answer(job(), config(num_hidden_layers=5000), device="cpu")
    assert "are free on this machine" in found["warnings"][0]
