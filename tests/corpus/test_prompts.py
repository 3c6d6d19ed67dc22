import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchgen.config.models import PromptConfig, SamplingConfig
from batchgen.corpus.prompts import PromptBuilder, column_uses, needed_columns, one_bos
from batchgen.corpus.tokenizing import WordTokenizer
from batchgen.errors import JobFileError
from batchgen.records import ERROR_TYPES, MISSING, Prompt, RowBlock, RowError


def builder(prompt, *, tokenizer=None, max_model_len=64, **sampling):
    return PromptBuilder(
        PromptConfig.model_validate(prompt),
        SamplingConfig.model_validate({"temperature": 0.0, "max_tokens": 16, **sampling}),
        tokenizer or WordTokenizer(),
        max_model_len=max_model_len,
        where=lambda key: f"job.yaml:1:1: {key}",
    )


def block(errors=None, start_row=0, **columns):
    num_rows = max((len(values) for values in columns.values()), default=0)
    return RowBlock("s.jsonl", 0, start_row, num_rows, columns, errors or {})


def outcome(item):
    return "ok" if isinstance(item, Prompt) else item.error.type


def outcomes(prompt, rows, **options):
    return [outcome(item) for item in builder(prompt, **options).build(rows)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("some words", "ok"),
        ("", "empty_prompt"),
        ("   ", "empty_prompt"),
        ("\u200b\ufeff\x00\u3000\n", "empty_prompt"),
        (" 😀", "ok"),
        (None, "null_prompt"),
        (float("nan"), "null_prompt"),
        (MISSING, "missing_column"),
        (123, "bad_type"),
        (True, "bad_type"),
        ({}, "bad_type"),
        (b"bytes", "bad_type"),
        ([], "bad_type"),
        (["text"], "bad_type"),
        ([{"role": "user"}], "bad_type"),
        ([{"content": "x"}], "bad_type"),
        ([{"role": "user", "content": 5}], "bad_type"),
        ([{"role": "user", "content": "hello"}], "ok"),
        ([{"role": "user", "content": " "}], "empty_prompt"),
        ([{"role": "user", "content": [{"type": "text", "text": "hello"}]}], "ok"),
        ([{"role": "user", "content": [{"type": "image"}]}], "bad_type"),
        ("lone \ud800 surrogate", "bad_type"),
        ("word " * 63, "ok"),
        ("word " * 64, "prompt_too_long"),
    ],
)
def test_a_value_of_the_prompt_column_is_judged(value, expected):
    values = ["before", value, "after"]
    assert outcomes({"column": "p"}, block(p=values)) == ["ok", expected, "ok"]


def test_an_empty_list_in_a_column_of_conversations_has_no_messages():
    values = [[{"role": "user", "content": "hello"}], []]
    assert outcomes({"column": "p"}, block(p=values)) == ["ok", "no_messages"]


@pytest.mark.parametrize(("value", "expected"), [("   ", "ok"), ("", "empty_prompt")])
def test_blank_prompts_may_be_allowed_empty_ones_never(value, expected):
    assert outcomes({"column": "p", "allow_blank": True}, block(p=[value])) == [expected]


def test_a_column_that_the_whole_shard_lacks_is_missing_in_each_row():
    rows = RowBlock("s", 0, 0, 2, {}, {})
    assert outcomes({"column": "p"}, rows) == ["missing_column"] * 2
    assert outcomes({"template": "{{ p }}"}, rows) == ["missing_column"] * 2


def test_a_template_judges_its_columns_before_it_renders():
    rows = block(title=["t", None, "t", MISSING, 7], body=["b", "b", float("nan"), "b", "b"])
    expected = ["ok", "null_prompt", "null_prompt", "missing_column", "ok"]
    assert outcomes({"template": "{{ title }}: {{ body }}"}, rows) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ t }} {{ data }}",
        "{{ data | trim }}",
        "{{ data or t }}",
        "{% if t %}{{ data }}{% endif %}",
    ],
)
@pytest.mark.parametrize("kind", ["template", "messages"])
def test_a_binary_column_is_not_written_into_a_prompt(kind, template):
    prompt = {
        "template": {"template": template},
        "messages": {"messages": [{"role": "user", "content": template}]},
    }[kind]
    sound, refused = builder(prompt).build(block(t=["a", "b"], data=["text", b"\xffbytes"]))
    assert isinstance(sound, Prompt)
    assert refused.error == RowError("bad_type", "column 'data' is binary, not text")


def test_a_binary_prompt_column_says_so():
    (refused,) = builder({"column": "data"}).build(block(data=[b"bytes"]))
    assert refused.error == RowError("bad_type", "column 'data' is binary, not text")


def test_a_template_may_decode_a_binary_column():
    prompt = {"template": "Say {{ data.decode() }}"}
    sound, refused = builder(prompt).build(block(data=[b"caf\xc3\xa9", b"\xff"]))
    assert sound.text == "Say café"
    assert refused.error.type == "template_error"


def test_unreadable_rows_keep_their_error():
    rows = block({0: RowError("bad_json", "s.jsonl:1: not JSON")}, p=[MISSING, "fine"])
    first, second = builder({"column": "p"}).build(rows)
    assert (first.error.type, second.text) == ("bad_json", "fine")


def test_wanted_rows_come_in_order_under_their_own_numbers():
    items = builder({"column": "p"}).build(block(start_row=100, p=list("abcd")), {103, 101})
    assert [(item.row, item.text) for item in items] == [(101, "b"), (103, "d")]


def test_messages_are_rendered_and_joined_by_the_chat_template():
    prompt = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "On {{ topic }}:\n{{ text }}"},
        ]
    }
    (item,) = builder(prompt).build(block(topic=["x"], text=["{{ topic }}"]))
    assert item.text == "system: Be brief. user: On x:\n{{ topic }} assistant:"


def test_a_refused_row_keeps_its_rendered_text():
    (item,) = builder({"template": "say {{ p }}"}).build(block(p=["word " * 80]))
    assert (item.text, item.error.num_prompt_tokens) == ("say " + "word " * 80, 81)


@pytest.mark.parametrize(
    ("prompt", "sampling", "expected"),
    [
        ({"column": "p"}, {}, {"p": "prompt.column"}),
        ({"template": "{{ a }}{{ b }}"}, {}, {"a": "prompt.template", "b": "prompt.template"}),
        (
            {"messages": [{"role": "user", "content": "{{ a }}"}]},
            {"temperature": {"column": "t"}, "seed": {"column": "a"}},
            {"a": "prompt.messages", "t": "sampling.temperature"},
        ),
    ],
)
def test_needed_columns_say_who_uses_them(prompt, sampling, expected):
    configs = PromptConfig.model_validate(prompt), SamplingConfig.model_validate(sampling)
    assert column_uses(*configs) == expected
    assert needed_columns(*configs) == tuple(expected)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"template": 'JSON {"a": 1} for {text}'}, "prompt.template: .*did you mean '{{ text }}'"),
        ({"template": "x {{ text }"}, "prompt.template: line 1 of the template"),
        ({"template": "no braces"}, "write '{{ name }}' where"),
        (
            {"messages": [{"role": "user", "content": "{{ a"}]},
            r"job.yaml:1:1: prompt.messages.0.content: line 1",
        ),
        ({"messages": [{"role": "user", "content": "{a}"}]}, "prompt.messages: .*'{{ a }}'"),
    ],
)
def test_a_mistake_of_every_row_is_a_job_file_error(prompt, message):
    with pytest.raises(JobFileError, match=message):
        builder(prompt)


@pytest.mark.parametrize(
    ("chat_template", "message"),
    [
        ("{{", "line 1 of the chat template: unexpected 'end of template'"),
        ("a\n{% if %}", "line 2 of the chat template: "),
        ("{{ messages | tojsn }}", "No filter named 'tojsn'"),
        ("no.jinja", "cannot read the file 'no.jinja': No such file"),
    ],
)
def test_a_chat_template_that_cannot_work_is_found_without_a_tokenizer(chat_template, message):
    prompt = PromptConfig.model_validate({"column": "p", "chat_template": chat_template})
    with pytest.raises(JobFileError) as caught:
        column_uses(prompt, SamplingConfig(), lambda key: f"job.yaml:1:1: {key}")
    (problem,) = caught.value.problems
    assert problem.startswith("job.yaml:1:1: prompt.chat_template: ")
    assert message in problem


def test_a_slip_in_the_file_of_a_chat_template_names_the_file(tmp_path):
    path = tmp_path / "chat.jinja"
    path.write_text("{{")
    with pytest.raises(JobFileError, match=r"line 1 of the chat template in '.*chat\.jinja': "):
        builder({"column": "p", "chat_template": str(path)})


@pytest.mark.parametrize(
    "chat_template",
    [
        "{% generation %}{{ messages }}{% endgeneration %}",
        "{% for m in messages %}{% if m %}{% break %}{% endif %}{% endfor %}",
        "{{ raise_exception('no') }}{{ strftime_now('%d') }}{{ messages | tojson(indent=2) }}",
    ],
)
def test_chat_templates_may_say_what_transformers_understands(chat_template):
    builder({"column": "p", "chat_template": chat_template})


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("stop", 5, "stop: must be text or a list of texts, is 5; put it in quotes"),
        ("stop", [True], "stop.0: must be text, is true; put it in quotes"),
        ("max_tokens", True, "max_tokens: must be a whole number, is true"),
        ("max_tokens", 0, "max_tokens: must be greater than 0, is 0"),
        ("temperature", "hot", "temperature: must be a number, is 'hot'"),
        ("json_schema", 5, "json_schema: must be a JSON schema as text or object, is 5"),
        ("json_schema", True, "json_schema: must be a JSON schema as text or object, is true"),
    ],
)
def test_a_rows_sampling_is_refused_in_the_words_of_the_job_file(field, value, problem):
    rows = block(p=["x"], value=[value])
    (refused,) = builder({"column": "p"}, **{field: {"column": "value"}}).build(rows)
    assert refused.error.message == f"sampling.{problem}"


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ("truncate_end", "w0 w1 w2 w3 w4 w5"),
        ("truncate_start", "w94 w95 w96 w97 w98 w99"),
        ("truncate_middle", "w0 w1 w2 w97 w98 w99"),
    ],
)
def test_the_longest_field_is_cut_and_nothing_else(how, kept):
    prompt = {"template": "Sum up {{ text }} in {{ n }} words", "on_overlong": how}
    rows = block(text=[" ".join(f"w{i}" for i in range(100))], n=["two"])
    (item,) = builder(prompt, max_model_len=20, max_tokens=9).build(rows)
    assert item.text == f"Sum up {kept} in two words"
    assert len(item.token_ids) == 11


def test_a_conversation_is_cut_in_its_longest_message():
    messages = [{"role": "system", "content": "a b"}, {"role": "user", "content": "w " * 100}]
    prompt = {"column": "m", "on_overlong": "truncate_end"}
    (item,) = builder(prompt, max_model_len=20, max_tokens=1).build(block(m=[messages]))
    assert item.text == "system: a b user: " + "w " * 13 + "w assistant:"


def test_instructions_that_do_not_fit_are_not_cut():
    prompt = {"template": "i " * 100 + "{{ text }}", "on_overlong": "truncate_end"}
    (item,) = builder(prompt).build(block(text=["some words"]))
    assert item.error.type == "prompt_too_long"
    assert "cutting 'text' alone" in item.error.message


@pytest.mark.parametrize(
    ("ids", "expected"),
    [([1, 5], [1, 5]), ([1, 1, 5], [1, 5]), ([1, 1, 1], [1]), ([5, 1, 1], [5, 1, 1]), ([], [])],
)
def test_one_beginning_of_sequence_at_most(ids, expected):
    assert one_bos(ids, 1) == expected


class TestSampling:
    def test_rows_without_values_of_their_own_share_one_sampling(self):
        items = builder({"column": "p"}, seed=7).build(block(p=["a", "b"]))
        assert items[0].sampling is items[1].sampling
        assert [item.seed for item in items] == [None, None]

    def test_each_row_has_its_own_seed_where_sampling_is_random(self):
        rows = block(p=["same"] * 4)
        seeds = [
            item.seed for item in builder({"column": "p"}, seed=7, temperature=1.0).build(rows)
        ]
        again = [
            item.seed for item in builder({"column": "p"}, seed=7, temperature=1.0).build(rows)
        ]
        assert len(set(seeds)) == 4
        assert seeds == again
        assert all(0 <= seed < 2**63 for seed in seeds)

    def test_values_of_a_row_override_the_default(self):
        rows = block(p=["a"] * 4, t=[0.5, None, MISSING, float("nan")])
        items = builder({"column": "p"}, temperature={"column": "t"}).build(rows)
        assert [item.sampling.values.get("temperature") for item in items] == [0.5] + [None] * 3
        assert items[1].sampling is items[2].sampling
        assert items[0].sampling.key != items[1].sampling.key

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("temperature", -1),
            ("temperature", "0.5"),
            ("temperature", True),
            ("max_tokens", 0),
            ("max_tokens", 2.5),
            ("max_tokens", {"column": "x"}),
            ("seed", "x"),
            ("stop", [""]),
            ("n", 10**30),
            ("logit_bias", {"x": 1}),
            ("structured_outputs", {"choice": []}),
            ("structured_outputs", {"column": "p"}),
        ],
    )
    def test_a_value_that_the_engine_would_choke_on_is_refused(self, field, value):
        sampling = {"temperature": 1.0, field: {"column": "v"}}
        rows = block(p=["a", "b"], v=[value, None])
        assert outcomes({"column": "p"}, rows, **sampling) == ["bad_sampling", "ok"]

    def test_the_refusal_names_field_and_value(self):
        rows = block(p=["a"], v=[-3])
        (item,) = builder({"column": "p"}, max_tokens={"column": "v"}).build(rows)
        assert "sampling.max_tokens: " in item.error.message
        assert item.error.message.endswith("is -3")

    def test_rules_between_fields_hold_for_a_row(self):
        rows = block(p=["a"], n=[3])
        assert outcomes({"column": "p"}, rows, n={"column": "n"}) == ["bad_sampling"]

    def test_integers_that_came_as_floats_are_integers(self):
        (item,) = builder({"column": "p"}, max_tokens={"column": "v"}).build(
            block(p=["a"], v=[8.0])
        )
        assert item.sampling.values["max_tokens"] == 8

    def test_a_seed_from_a_column_is_taken_as_it_is(self):
        rows = block(p=["a", "b"], s=[11, None])
        items = builder({"column": "p"}, temperature=1.0, seed={"column": "s"}).build(rows)
        assert [item.seed for item in items] == [11, None]

    @pytest.mark.parametrize(
        "schema",
        [
            "",
            "not json",
            "[]",
            "5",
            7,
            '{"type": "array", "items": [{"type": "string"}]}',
            '{"type": "nonsense"}',
            {"type": 5},
            '{"$ref": "#/nowhere"}',
            '{"a":' * 2000 + "1" + "}" * 2000,
            "/etc/hostname",
        ],
    )
    def test_a_schema_that_cannot_compile_is_refused(self, schema):
        good = '{"type": "object"}'
        rows = block(p=list("abcd"), s=[good, schema, None, json.loads(good)])
        items = builder({"column": "p"}, json_schema={"column": "s"}).build(rows)
        assert [outcome(item) for item in items] == ["ok", "bad_schema", "ok", "ok"]
        assert (
            items[0].sampling is items[3].sampling or items[0].sampling.key == items[3].sampling.key
        )
        assert items[0].sampling.values["json_schema"] == '{"type":"object"}'
        assert "json_schema" not in items[2].sampling.values

    def test_each_distinct_schema_is_compiled_once(self, monkeypatch):
        from batchgen.corpus import sampling

        compiled = []
        real = sampling.schema_problem
        monkeypatch.setattr(
            sampling, "schema_problem", lambda text: compiled.append(text) or real(text)
        )
        rows = block(p=["a"] * 6, s=['{"type": "object"}', "", "[]"] * 2)
        outcomes({"column": "p"}, rows, json_schema={"column": "s"})
        assert len(compiled) == 3

    def test_a_row_may_not_name_files_as_schema(self):
        rows = block(p=["a"], s=[{"json": "/etc/hostname"}])
        result = outcomes({"column": "p"}, rows, structured_outputs={"column": "s"})
        assert result == ["bad_schema"]


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["user", "{{ p }}", "\ud800", MISSING]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "column", "type"]), inner)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "prompt",
    [
        {"column": "p"},
        {"template": "{{ p }}"},
        {"template": "{% if p %}{{ p.role }}{% endif %}{{ p | string | upper }}"},
        {"messages": [{"role": "user", "content": "{{ p }}"}], "on_overlong": "truncate_middle"},
    ],
)
@settings(deadline=None, max_examples=60)
@given(values=st.lists(JSON_VALUES, min_size=1, max_size=5), others=st.data())
def test_any_value_gives_a_prompt_or_a_refusal(prompt, values, others):
    size = len(values)
    same_size = st.lists(JSON_VALUES, min_size=size, max_size=size)
    rows = block(p=values, t=others.draw(same_size), s=others.draw(same_size))
    sampling = {"temperature": {"column": "t"}, "json_schema": {"column": "s"}}
    items = builder(prompt, max_model_len=8, **sampling).build(rows)
    assert [item.row for item in items] == list(range(size))
    assert all(
        0 < len(item.token_ids) < 8 if isinstance(item, Prompt) else item.error.type in ERROR_TYPES
        for item in items
    )


@pytest.mark.parametrize("prompt", [{"column": "p"}, {"template": "{{ p }}"}])
def test_deeply_nested_values_are_refused(write_shard, read, prompt):
    line = '{"p": ' + "[" * 1000 + "]" * 1000 + "}"
    shard = write_shard("a.jsonl", [line, '{"p": "fine"}'])
    rows = [item for rows in read(shard, "p") for item in builder(prompt).build(rows)]
    assert [isinstance(item, Prompt) for item in rows] == [False, True]
