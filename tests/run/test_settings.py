"""What a run says of its settings, for comparison with another one."""

from batchgen.run.settings import MOST_KEYS, engine_settings, job_settings


def test_settings_are_flat_and_named_as_in_the_job():
    job = {
        "batch": {"size": 512, "feed": "continuous"},
        "model": {"max_num_seqs": None, "extra": {"speculative_config": {"method": "ngram"}}},
    }
    found = job_settings(job, {"vllm": "0.32.0"})
    assert found["batch.size"] == 512
    assert found["model.max_num_seqs"] is None
    assert found["model.extra.speculative_config.method"] == "ngram"
    assert found["versions.vllm"] == "0.32.0"
    assert found["machine.cpus"] > 0


def test_scripts_and_long_texts_are_no_settings():
    script = {f"a.jsonl:{row}": {"fault": "row_error"} for row in range(MOST_KEYS + 1)}
    job = {"batch": {}, "model": {"extra": {"script": script, "note": "x" * 1000, "dtype": "half"}}}
    found = job_settings(job, {})
    assert [key for key in found if key.startswith("model.")] == ["model.extra.dtype"]


def test_an_engine_s_own_settings_stand_beside_its_limits():
    settings = {"dtype": "bfloat16", "chosen": ["a", "b"]}
    engine = {"name": "vllm", "max_num_seqs": 64, "settings": settings}
    assert engine_settings(engine) == {
        "engine.name": "vllm",
        "engine.max_num_seqs": 64,
        "engine.dtype": "bfloat16",
        "engine.chosen": "a; b",
    }


def test_what_completions_are_made_of_is_among_the_settings():
    job = {
        "batch": {},
        "model": {},
        "prompt": {"template": "Summarize: {{ text }}"},
        "sampling": {"max_tokens": 100, "json_schema": "{" + " " * 1000, "stop": ["a", "b"]},
        "stop_early": {"repetition": {"min_count": 3}},
    }
    found = job_settings(job, {})
    assert found["sampling.max_tokens"] == 100
    assert found["sampling.stop"] == "a; b"
    assert found["sampling.json_schema"].startswith("digest ")
    assert found["stop_early.repetition.min_count"] == 3
    other = job_settings({**job, "prompt": {"template": "Title: {{ text }}"}}, {})
    assert {key for key in found if found[key] != other[key]} == {"prompt.digest"}
