import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.config.models import ModelConfig, PromptConfig, SamplingConfig
from batchgen.corpus.overlong import cut_text
from batchgen.corpus.prompts import PromptBuilder
from batchgen.corpus.tokenizing import (
    WordTokenizer,
    count_words,
    load_tokenizer,
    model_length,
)
from batchgen.errors import EngineError, JobFileError
from batchgen.records import RowBlock

CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture
def tokenizer_dir(tmp_path):
    """A word-level tokenizer that adds `<s>`, whose chat template writes `<s>` too."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing

    words = ["<unk>", "<s>", "</s>", "user:", "assistant:", "name", "one", "river"]
    backend = Tokenizer(WordLevel({word: id for id, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": CHAT,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def load(path, **prompt):
    model = ModelConfig.model_validate({"engine": "simulated", "tokenizer": str(path)})
    return load_tokenizer(model, PromptConfig.model_validate(prompt or {"column": "p"}))


CONVERSATION = [{"role": "user", "content": "name one river"}]


@pytest.mark.parametrize(
    ("prompt", "value", "ids"),
    [
        ({"column": "p"}, "name one river", [1, 5, 6, 7]),
        ({"template": "<s>{{ p }}"}, "name one river", [1, 5, 6, 7]),
        ({"column": "p"}, CONVERSATION, [1, 3, 5, 6, 7, 4]),
        (
            {"messages": [{"role": "user", "content": "name {{ p }}"}]},
            "one river",
            [1, 3, 5, 6, 7, 4],
        ),
    ],
)
def test_a_prompt_begins_once(tokenizer_dir, prompt, value, ids):
    builder = PromptBuilder(
        PromptConfig.model_validate(prompt),
        SamplingConfig.model_validate({"temperature": 0.0}),
        load(tokenizer_dir, **prompt),
        max_model_len=64,
        where=str,
    )
    (item,) = builder.build(RowBlock("s", 0, 0, 1, {"p": [value]}))
    assert list(item.token_ids) == ids


def test_a_prompt_is_cut_at_tokens_of_the_real_tokenizer(tokenizer_dir):
    prompt = PromptConfig.model_validate(
        {"template": "name {{ p }} river", "on_overlong": "truncate_end"}
    )
    sampling = SamplingConfig.model_validate({"temperature": 0.0, "max_tokens": 2})
    builder = PromptBuilder(prompt, sampling, load(tokenizer_dir), max_model_len=8, where=str)
    (item,) = builder.build(RowBlock("s", 0, 0, 1, {"p": ["one  one\n one one one"]}))
    assert item.text == "name one  one\n one river"
    assert len(item.token_ids) == 6


def test_another_chat_template_takes_the_place_of_the_models_own(tokenizer_dir):
    template = "{{ messages[0]['content'] }}!{{ mood }}"
    tokenizer = load(tokenizer_dir, column="p", chat_template=template)
    assert tokenizer.render_chat(CONVERSATION, mood="ok") == "name one river!ok"


def test_a_chat_template_may_stand_in_a_file(tokenizer_dir):
    path = tokenizer_dir / "chat.jinja"
    path.write_text("{{ messages[0]['role'] }}")
    tokenizer = load(tokenizer_dir, column="p", chat_template=str(path))
    assert tokenizer.render_chat(CONVERSATION) == "user"


def test_a_chat_template_that_refuses_says_so(tokenizer_dir):
    template = "{{ raise_exception('roles must alternate') }}"
    tokenizer = load(tokenizer_dir, column="p", chat_template=template)
    with pytest.raises(ValueError, match="roles must alternate"):
        tokenizer.render_chat(CONVERSATION)


def test_a_chat_template_file_that_is_not_there_is_a_job_file_error(tokenizer_dir):
    with pytest.raises(
        JobFileError, match=r"prompt.chat_template: cannot read the file 'no.jinja'"
    ):
        load(tokenizer_dir, column="p", chat_template="no.jinja")


def test_messages_need_a_chat_template(tokenizer_dir):
    config = json.loads((tokenizer_dir / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (tokenizer_dir / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(JobFileError, match="has no chat template"):
        load(tokenizer_dir, messages=[{"role": "user", "content": "{{ p }}"}])


@pytest.mark.parametrize("content", [None, "no json", '{"model": {"type": "Odd"}}'])
def test_a_tokenizer_that_cannot_be_loaded_is_named(tmp_path, content):
    path = tmp_path / "model"
    if content is not None:
        path.mkdir()
        (path / "tokenizer.json").write_text(content)
        (path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(EngineError, match=str(path)):
        load(path)


def test_the_simulated_engine_counts_words():
    model = ModelConfig.model_validate({"engine": "simulated"})
    tokenizer = load_tokenizer(model, PromptConfig.model_validate({"column": "p"}))
    ids = tokenizer.encode_batch(["a  b\na", "", "   "], add_special_tokens=True)
    assert [len(row) for row in ids] == [3, 0, 1]
    assert ids[0][0] == ids[0][2] != ids[0][1]
    assert tokenizer.decode(ids[0]) == "a b a"


def test_ids_of_words_are_the_same_in_any_process():
    (ids,) = WordTokenizer().encode_batch(["river"], add_special_tokens=False)
    assert list(ids) == [2712997637021227303]


@given(text=st.text(), keep=st.integers(0, 8), how=st.sampled_from(["start", "middle", "end"]))
def test_a_cut_text_has_as_many_words_as_asked_for(text, keep, how):
    tokenizer = WordTokenizer()
    spans = tokenizer.spans(text)
    cut = cut_text(text, spans, keep, f"truncate_{how}")
    assert len(tokenizer.spans(cut)) == min(keep, len(spans))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 2048}, 2048),
        ({"n_positions": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 512}}, 512),
        ({}, None),
    ],
)
def test_the_model_length_stands_in_its_config(tmp_path, config, expected):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_length(ModelConfig.model_validate({"name": str(tmp_path)})) == expected


@given(st.text(alphabet="ab \t\n\r\x0b\x1c\x1f\x85\u2028é", max_size=12))
def test_words_are_counted_as_a_split_would(text):
    assert count_words(text) == (len(text.split()) or bool(text))
