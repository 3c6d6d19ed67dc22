import json

import pytest

from batchgen.config.fingerprint import differences, digest, fingerprint

MODEL = {"name": "m", "extra": {"gpu_memory_utilization": 0.5, "dtype": "float32"}}


def taken(job):
    return json.loads(json.dumps(fingerprint(job, model_digest="abc")))


@pytest.mark.parametrize(
    ("override", "change"),
    [
        ("sampling.max_tokens=48", "sampling.max_tokens: 16 → 48"),
        ("sampling.seed=1", "sampling.seed: not set → 1"),
        (
            "prompt.template=Say {{ text }}",
            "prompt.template: 'Summarize: {{ text }}' → 'Say {{ text }}'",
        ),
        ("prompt.allow_blank=true", "prompt.allow_blank: false → true"),
        ("model.revision=v2", "model.revision: not set → 'v2'"),
        ("model.extra.dtype=float16", "model.extra.dtype: 'float32' → 'float16'"),
        ("output.keep=[id, url]", "output.keep: not set → ['id', 'url']"),
        ("output.rows_per_part=5", "output.rows_per_part: 10000 → 5"),
        ("input.on_bad_line=skip", "input.on_bad_line: 'error_row' → 'skip'"),
    ],
)
def test_a_change_of_outputs_is_named(load, override, change):
    old, new = taken(load(model=MODEL)), taken(load(override, model=MODEL))
    assert [str(found) for found in differences(old, new)] == [change]
    assert digest(old) != digest(new)


@pytest.mark.parametrize(
    "override",
    [
        "model.extra.gpu_memory_utilization=0.9",
        "model.max_num_seqs=8",
        "model.extra.enforce_eager=true",
        "batch.size=8",
        "batch.feed=generate",
        "batch.dedupe=false",
        "errors.max_failed=5",
        "name=other",
        "output.path=elsewhere",
        "model.extra.log_level=DEBUG",
    ],
)
def test_what_cannot_matter_is_no_part_of_it(load, override):
    assert taken(load(model=MODEL)) == taken(load(override, model=MODEL))


def test_another_model_digest_is_a_change(load):
    job = load()
    old, new = (fingerprint(job, model_digest=text) for text in ("abc", "def"))
    assert [str(found) for found in differences(old, new)] == ["model.digest: 'abc' → 'def'"]


def test_options_of_the_simulated_engine_are_free(load):
    jobs = [load(model={"engine": "simulated", "extra": extra}) for extra in ({}, {"step_s": 0.5})]
    assert taken(jobs[0]) == taken(jobs[1])


def test_a_removed_message_is_a_change(load):
    one = {"role": "user", "content": "{{ text }}"}
    old = taken(load(prompt={"messages": [one, one]}))
    new = taken(load(prompt={"messages": [one]}))
    assert {found.key for found in differences(old, new)} == {
        "prompt.messages.1.role",
        "prompt.messages.1.content",
    }


def test_the_content_of_a_chat_template_file_counts(load, tmp_path):
    path = tmp_path / "chat.jinja"
    prompt = {"column": "x", "chat_template": str(path)}
    path.write_text("one")
    old = taken(load(prompt=prompt))
    path.write_text("two")
    changed = differences(old, taken(load(prompt=prompt)))
    assert [found.key for found in changed] == ["prompt.chat_template_digest"]


def test_secrets_are_masked(load):
    job = load(prompt={"column": "x", "chat_template_kwargs": {"api_key": "hunter2"}})
    assert "hunter2" not in json.dumps(taken(job))


@pytest.mark.parametrize(
    ("section", "old", "new"),
    [
        (
            "prompt",
            {"template": "See https://alice@x/ {{ t }}"},
            {"template": "See https://bob@x/ {{ t }}"},
        ),
        ("prompt", {"template": "x?token=1 {{ t }}"}, {"template": "x?token=2 {{ t }}"}),
        ("sampling", {"stop": ["https://a@x"]}, {"stop": ["https://b@x"]}),
        (
            "prompt",
            {"column": "x", "chat_template_kwargs": {"end_token": "name"}},
            {"column": "x", "chat_template_kwargs": {"end_token": "river"}},
        ),
    ],
)
def test_a_change_behind_a_mask_is_a_change(load, section, old, new):
    (change,) = differences(taken(load(**{section: old})), taken(load(**{section: new})))
    assert change.section == section
    assert "***" in str(change)
