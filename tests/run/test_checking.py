"""A check tells what a run would do, without an engine."""

import json
import subprocess
import sys

import pytest

from batchgen.config.loading import load_job
from batchgen.errors import DataError, JobFileError
from batchgen.run.checking import check_job

LONG = "word " * 120


@pytest.fixture
def job(tmp_path):
    """A loaded job over these rows, with some lines of YAML of its own."""

    def make(rows, lines="prompt: {column: prompt}", *, sampling="{max_tokens: 16}", name="a"):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        file = tmp_path / "job.yaml"
        file.write_text(
            f"input: {{paths: ['{tmp_path}/*.jsonl']}}\n"
            f"{lines}\n"
            "model: {engine: simulated, max_model_len: 64}\n"
            f"sampling: {sampling}\n"
            f"output: {{path: {tmp_path}/out}}\n"
        )
        return load_job(file)

    return make


def test_rows_and_columns_are_counted(job):
    report = check_job(job([{"id": 1, "prompt": "two words"}] * 3))
    assert (report.num_rows, report.is_estimate) == (3, False)
    assert report.used_columns == ("prompt",)
    assert set(report.columns) == {"id", "prompt"}
    assert [shard.num_rows for shard in report.shards] == [3]


def test_first_prompts_come_with_token_ids_and_room(job):
    report = check_job(job([{"prompt": "two words"}, {"prompt": "three small words"}]))
    assert [prompt.num_tokens for prompt in report.prompts] == [2, 3]
    assert [len(prompt.token_ids) for prompt in report.prompts] == [2, 3]
    assert report.prompts[0].room_tokens == 62
    assert report.prompts[0].text == "two words"


def test_so_many_prompts_are_shown_as_asked_for(job):
    assert len(check_job(job([{"prompt": "x"}] * 9), num_prompts=5).prompts) == 5


def test_without_tokens_there_are_no_counts(job):
    report = check_job(job([{"prompt": LONG}]), tokens=False)
    assert report.prompts[0].token_ids is None
    assert report.prompts[0].num_tokens is None
    assert report.refused == {}


def test_refused_rows_are_counted_by_type_with_the_first_example(job):
    rows = [{"prompt": "fine"}, {"prompt": LONG}, {"prompt": ""}, {"prompt": LONG}]
    refused = check_job(job(rows)).refused
    assert set(refused) == {"prompt_too_long", "empty_prompt"}
    assert (refused["prompt_too_long"].num_rows, refused["prompt_too_long"].row) == (2, 1)
    assert refused["empty_prompt"].shard == "a.jsonl"


def test_a_large_input_is_estimated_from_a_sample(job):
    report = check_job(job([{"prompt": f"row {number:06d}"} for number in range(20_000)]))
    assert report.is_estimate
    assert report.num_rows == pytest.approx(20_000, rel=0.02)
    assert report.num_sampled < 2_000


def test_a_column_that_no_row_has_is_refused(job):
    with pytest.raises(DataError, match="did you mean 'Body'"):
        check_job(job([{"Body": "x"}], 'prompt: {template: "{{ body }}"}'))


def test_a_template_without_column_is_refused(job):
    with pytest.raises(JobFileError, match=r"job\.yaml:\d+.*\{\{ text \}\}"):
        check_job(job([{"text": "x"}], 'prompt: {template: "Say {text}"}'))


@pytest.mark.parametrize(
    ("prompt", "is_warned"),
    [
        ('template: "{{ text }}\\n\\n' + "Summarize this text in two sentences. " * 4 + '"', True),
        ('template: "' + "Summarize this text in two sentences. " * 4 + '{{ text }}"', False),
        ('template: "{{ text }} Answer:"', False),
        (
            'messages: [{role: user, content: "{{ text }}"}, {role: user, content: "'
            + "Summarize this text in two sentences. " * 4
            + '"}]',
            True,
        ),
    ],
)
def test_a_document_before_the_shared_instructions_is_warned_of(job, prompt, is_warned):
    report = check_job(job([{"text": "x"}], f"prompt: {{{prompt}}}"))
    assert any("prefix cache" in warning for warning in report.warnings) is is_warned


@pytest.mark.parametrize(
    ("num_shared", "block", "is_warned"),
    [(40, 128, True), (40, 32, False), (130, 128, False), (8, 16, False), (31, 128, False)],
)
def test_a_shared_start_below_a_kv_block_is_warned_of(job, num_shared, block, is_warned):
    template = "Summarize. " * num_shared + "{{ text }}"
    made = job([{"text": "one"}, {"text": "two"}], f'prompt: {{template: "{template}"}}')
    model = made.model.model_copy(
        update={"extra": {"kv_block_tokens": block}, "max_model_len": 512}
    )
    report = check_job(made.model_copy(update={"model": model}))
    assert any(f"whole blocks of {block}" in line for line in report.warnings) is is_warned


def test_little_room_for_output_is_warned_of(job):
    report = check_job(job([{"prompt": "word " * 60}], sampling="{max_tokens: 16}"))
    (warning,) = report.warnings
    assert "max_tokens" in warning
    assert "a.jsonl:0" in warning


def test_disk_space_is_compared_with_the_most_that_may_be_written(job):
    rows = [{"prompt": "x"}] * 10
    report = check_job(job(rows, sampling="{max_tokens: 9223372036854775}"))
    assert any("free some space" in warning for warning in report.warnings)


def test_schemas_of_the_sample_are_compiled(job):
    good = json.dumps({"type": "object"})
    rows = [{"prompt": "x", "s": s} for s in (good, "", good, None)]
    report = check_job(job(rows, sampling="{max_tokens: 4, json_schema: {column: s}}"))
    assert report.num_schemas == 1
    assert report.refused["bad_schema"].row == 1


def test_a_sample_of_which_nothing_is_left_is_warned_of_last(job):
    report = check_job(job([{"prompt": ""}] * 3))
    assert report.num_refused == report.num_sampled == 3
    assert report.warnings[-1].startswith("all 3 rows looked at will be refused (empty_prompt)")


def test_nothing_is_written(job, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    loaded = job([{"prompt": "x"}])
    check_job(loaded)
    assert sorted(tmp_path.rglob("*")) == sorted(
        [*before, tmp_path / "a.jsonl", tmp_path / "job.yaml"]
    )


def test_without_tokens_no_tokenizer_and_no_engine_is_loaded(job, tmp_path):
    job([{"prompt": "x"}] * 100)
    code = (
        "import sys\n"
        "from batchgen.config.loading import load_job\n"
        "from batchgen.run.checking import check_job\n"
        f"check_job(load_job({str(tmp_path / 'job.yaml')!r}), tokens=False)\n"
        "assert not {'vllm', 'torch', 'transformers', 'tokenizers', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory):
    """A tokenizer of six words that adds BOS, and whose chat template writes BOS too."""
    vocabulary = ["<unk>", "<s>", "user:", "assistant:", "name", "one", "river"]
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    added = [
        {"id": number, "content": word, "special": True, **dict.fromkeys(flags, False)}
        for number, word in enumerate(vocabulary[:2])
    ]
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, first],
            "pair": [bos, first, second],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(vocabulary)},
            "unk_token": "<unk>",
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "chat_template": "{{ bos_token }}{% for message in messages %}"
        "{{ message['role'] }}: {{ message['content'] }} {% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}",
    }
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt", "ids", "num_warnings"),
    [
        ("column: prompt", (1, 4, 5, 6), 0),
        ('template: "<s>{{ prompt }}"', (1, 4, 5, 6), 1),
        ('messages: [{role: user, content: "{{ prompt }}"}]', (1, 2, 4, 5, 6, 3), 0),
    ],
)
def test_there_is_one_bos_at_most(job, tokenizer_dir, prompt, ids, num_warnings):
    pytest.importorskip("transformers")
    loaded = job([{"prompt": "name one river"}], f"prompt: {{{prompt}}}")
    model = loaded.model.model_copy(update={"tokenizer": str(tokenizer_dir)})
    report = check_job(loaded.model_copy(update={"model": model}))
    assert report.prompts[0].token_ids == ids
    assert len(report.warnings) == num_warnings
    assert all("BOS" in warning for warning in report.warnings)
