import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchgen.config.loading import load_job
from batchgen.errors import JobFileError, UsageError

JOB = """\
input: {paths: [data/*.jsonl]}
prompt:
  template: "Summarize: {{ text }}"
model: {name: models/tiny}
sampling:
  max_tokens: 64
output: {path: runs/x}
"""


def test_a_minimal_job_gets_the_defaults(write):
    job = load_job(write(JOB, "nightly.yaml"))
    assert (job.name, job.batch.size, job.batch.feed) == ("nightly", 512, "continuous")
    assert (job.errors.stop_at, job.output.rows_per_part) == ("20%", 10_000)


def test_a_path_object_is_taken(write):
    assert load_job(Path(write(JOB))).model.name == "models/tiny"


def test_all_problems_come_at_once_in_the_order_of_the_file(problems):
    text = JOB.replace("max_tokens: 64", "max_tokens: -5\n  top_p: 0")
    text = text.replace("paths:", "pahts:") + "batch: {size: big}\n"
    assert problems(text) == [
        "job.yaml:1:1: input.paths: is missing",
        "job.yaml:1:9: input.pahts: no such key; did you mean 'paths'?",
        "job.yaml:6:15: sampling.max_tokens: must be greater than 0, is -5",
        "job.yaml:7:10: sampling.top_p: must be greater than 0, is 0",
        "job.yaml:9:15: batch.size: must be a whole number, is 'big'",
    ]


def test_unknown_key_suggests_the_nearest(problems):
    assert problems(JOB.replace("name:", "modle: x, name:").replace("modle", "enigne")) == [
        "job.yaml:4:9: model.enigne: no such key; did you mean 'engine'?"
    ]


def test_unknown_key_of_another_section_is_sent_there(problems):
    assert problems("max_tokens: 5\n" + JOB) == [
        "job.yaml:1:1: max_tokens: no such key; did you mean 'sampling.max_tokens'?"
    ]


def test_unknown_key_without_a_near_one_lists_what_there_is(problems):
    (problem,) = problems(JOB + "errors: {zebra: 1}\n")
    assert problem == (
        "job.yaml:8:10: errors.zebra: no such key; there are max_failed, stop_at,"
        " engine_restarts, stall_timeout"
    )


def test_a_missing_section_is_named(problems):
    assert problems(JOB.replace("model: {name: models/tiny}\n", "")) == [
        "job.yaml:1:1: model: is missing"
    ]


def test_duplicate_key_names_both_places(problems):
    assert problems(JOB.replace("max_tokens: 64", "n: 1\n  n: 2")) == [
        "job.yaml:7:3: sampling.n: stands here again; first at job.yaml:6:3"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "job.yaml: is empty; 'batchgen init' writes a job file to start from"),
        ("# nothing\n", "job.yaml: is empty; 'batchgen init' writes a job file to start from"),
        (
            "- a\n",
            "job.yaml:1:1: a job file is a mapping of sections (input, prompt, model, …),"
            " this is a list",
        ),
        (
            "input:\n\tpaths: x\n",
            "job.yaml:2:1: not valid YAML: found character '\\t' that cannot start any token;"
            " indent with spaces, not with tabs",
        ),
        (
            "prompt:\n  template: Summarize: {{ text }}\n",
            "job.yaml:2:22: not valid YAML: mapping values are not allowed here;"
            ' a template needs quotes: "{{ text }}"',
        ),
        (
            "prompt:\n  template: {{ text }}\n",
            "job.yaml:2:14: prompt.template: a key must be text; a template such as"
            " '{{ text }}' needs quotes",
        ),
        ("a: b\x07c\n", "job.yaml:1:5: the character U+0007 is not allowed in YAML"),
        ("a: 1\n---\nb: 2\n", None),
        ("a: [1\n", None),
        pytest.param(f"a: {'[' * 5000}", None, id="deep"),
        pytest.param(f"input: {'9' * 5000}", None, id="long"),
        ("a: *nowhere\n", None),
    ],
)
def test_a_file_that_is_no_job_says_why(problems, text, problem):
    found = problems(text)
    assert all(re.match(r"job\.yaml:?\d*", line) for line in found)
    assert problem is None or problem in found


def test_a_file_that_is_not_utf8_names_the_line(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"name: x\nmodel: {name: caf\xe9}\n")
    with pytest.raises(JobFileError, match=r"job\.yaml:2: is not UTF-8; save the file as UTF-8"):
        load_job(path)


def test_a_byte_order_mark_is_no_part_of_the_first_key(write):
    assert load_job(write("\ufeff" + JOB)).model.name == "models/tiny"


def test_a_missing_file_suggests_one_beside_it(write):
    write(JOB, "nightly.yaml")
    with pytest.raises(JobFileError) as caught:
        load_job("nihgtly.yaml")
    assert str(caught.value) == "nihgtly.yaml: no such file; did you mean 'nightly.yaml'?"


def test_a_directory_is_no_job_file(tmp_path):
    with pytest.raises(JobFileError, match="is a directory"):
        load_job(tmp_path)


class TestYaml:
    @pytest.mark.parametrize(
        ("written", "value"),
        [("1e-1", 0.1), (".5", 0.5), ("1", 1.0), ("2e0", 2.0), ("0", 0.0)],
    )
    def test_numbers_are_those_of_yaml_1_2(self, write, written, value):
        job = load_job(write(JOB.replace("max_tokens: 64", f"temperature: {written}")))
        assert job.sampling.temperature == value

    @pytest.mark.parametrize("word", ["NO", "yes", "on", "2026-01-01", "12:30", "0x"])
    def test_words_are_text(self, write, word):
        assert load_job(write(JOB.replace("models/tiny", word))).model.name == word

    @pytest.mark.parametrize(
        ("word", "hint"), [("yes", "; write true"), ("Off", "; write false"), ("maybe", "")]
    )
    def test_only_true_and_false_are_truth_values(self, problems, word, hint):
        assert problems(JOB + f"batch: {{dedupe: {word}}}\n") == [
            f"job.yaml:8:17: batch.dedupe: must be true or false, is '{word}'{hint}"
        ]

    def test_anchors_and_merge_keys_work_and_own_keys_win(self, write):
        text = JOB.replace(
            "sampling:\n  max_tokens: 64", "sampling:\n  max_tokens: 64\n  <<: *base"
        )
        text = text.replace("{name: models/tiny}", "{name: x, extra: &base {seed: 1}}")
        job = load_job(write(text))
        assert (job.sampling.seed, job.sampling.max_tokens) == (1, 64)

    def test_an_alias_within_itself_is_refused(self, problems):
        found = problems(JOB.replace("max_tokens: 64", "extra_args: &a {x: *a}"))
        assert found[0].startswith("job.yaml:6:15: sampling.extra_args.x: its aliases")

    def test_aliases_that_multiply_are_refused(self, problems):
        levels = [f"  - &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 9)]
        text = "bomb:\n  - &l0 [x]\n" + "\n".join(levels) + "\n" + JOB
        assert any("expand without end" in problem for problem in problems(text))

    def test_tags_are_refused(self, problems):
        text = JOB.replace("models/tiny", "!!python/object/apply:os.getcwd []")
        assert problems(text) == [
            "job.yaml:4:15: model.name: YAML tags such as !!python/object/apply:os.getcwd are not"
            " supported"
        ]


class TestEnvironment:
    def test_variables_are_filled_in_and_typed(self, write, monkeypatch):
        monkeypatch.setenv("TOKENS", "48")
        text = JOB.replace("64", "${TOKENS}").replace("runs/x", '"${OUT:-runs}/x"')
        job = load_job(write(text))
        assert (job.sampling.max_tokens, job.output.path) == (48, "runs/x")

    def test_quoted_variables_stay_text(self, problems, monkeypatch):
        monkeypatch.setenv("TOKENS", "48")
        assert problems(JOB.replace("64", '"${TOKENS}"')) == [
            "job.yaml:6:15: sampling.max_tokens: must be a whole number, is '48'; remove the quotes"
        ]

    def test_prompts_are_left_alone(self, write):
        job = load_job(write(JOB.replace("{{ text }}", "{{ text }} ${HOME}")))
        assert job.prompt.template == "Summarize: {{ text }} ${HOME}"

    def test_every_missing_variable_is_reported_once(self, problems):
        text = JOB.replace("64", "${NOPE_A}").replace("models/tiny", '"${NOPE_B:?set the model}"')
        assert problems(text) == [
            "job.yaml:4:15: model.name: environment variable NOPE_B: set the model",
            "job.yaml:6:15: sampling.max_tokens: environment variable NOPE_A is not set; set it,"
            " or write ${NOPE_A:-default}",
        ]

    def test_a_variable_in_braces_needs_quotes(self, problems):
        (problem,) = problems(JOB.replace("models/tiny", "${NOPE}"))
        assert problem.endswith('within { } or [ ] a variable needs quotes: "${NAME}"')


class TestOverrides:
    def test_any_key_can_be_overridden(self, write):
        job = load_job(
            write(JOB),
            [
                "sampling.max_tokens=8",
                "batch.feed=generate",
                "input.paths=[a, b]",
                "input.paths.0=c",
                "model.extra.seed=3",
            ],
        )
        assert (job.sampling.max_tokens, job.batch.feed) == (8, "generate")
        assert (job.input.paths, job.model.extra) == (["c", "b"], {"seed": 3})

    def test_templates_need_no_yaml_quotes(self, write):
        job = load_job(write(JOB), ["prompt.template=Say: {{ text }} = ?"])
        assert job.prompt.template == "Say: {{ text }} = ?"

    def test_null_removes_a_key(self, write):
        job = load_job(write(JOB), ["prompt.template=null", "prompt.column=text"])
        assert (job.prompt.template, job.prompt.column) == (None, "text")

    def test_an_override_mends_the_value_that_it_replaces(self, write):
        assert load_job(write(JOB.replace("64", "${NOPE}")), ["sampling.max_tokens=3"])

    @pytest.mark.parametrize(
        ("override", "problem"),
        [
            ("batch.sise=3", "-s batch.sise: no such key; did you mean 'size'?"),
            ("batch.size=x", "-s batch.size: must be a whole number, is 'x'"),
            ("batch={size: 0}", "-s batch: batch.size: must be greater than 0, is 0"),
            (
                "output.path.x=1",
                "-s output.path.x: there is nothing to override, the value above it is 'runs/x'",
            ),
            (
                "input.format={",
                "-s input.format: not valid YAML: expected the node content,"
                " but found '<stream end>'",
            ),
        ],
    )
    def test_problems_are_located_at_the_override(self, problems, override, problem):
        assert problems(JOB, override) == [problem]

    @pytest.mark.parametrize("override", ["x", "=3", "a..b=3", ""])
    def test_an_override_that_is_none_is_a_usage_error(self, write, override):
        with pytest.raises(UsageError, match="write it as key=value"):
            load_job(write(JOB), [override])


class TestWhere:
    def test_a_key_is_found_in_the_file(self, write):
        job = load_job(write(JOB))
        assert job.where("prompt.template") == "job.yaml:3:3: prompt.template"

    def test_a_key_that_is_not_there_gets_its_section(self, write):
        job = load_job(write(JOB))
        assert job.where("prompt.on_overlong") == "job.yaml:2:1: prompt.on_overlong"

    def test_an_overridden_key_names_the_override(self, write):
        job = load_job(write(JOB), ["output.prefix=x_"])
        assert job.where("output.prefix") == "-s output.prefix: output.prefix"


def test_importing_the_loader_brings_no_heavy_module():
    heavy = ("pandas", "pyarrow", "jsonschema", "vllm", "torch", "jinja2", "numpy")
    code = f"import sys, batchgen.config.loading; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


EDITS = ("\t", ": ", "- ", "{", "}", "[", "]", "'", '"', "*a ", "&a ", "!!x ", "? ", "\n", "  ")
WORDS = ("#", "null", "1", "${", "<<: ", "| ", "~", "%", "@", "\u2028", "{{ x }}", "---\n")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(JOB)), st.sampled_from(EDITS + WORDS)), max_size=4))
def test_an_edited_file_loads_or_says_where_it_is_wrong(write, edits):
    text = JOB
    for position, inserted in edits:
        text = text[:position] + inserted + text[position:]
    try:
        load_job(write(text))
        problems: tuple[str, ...] = ()
    except JobFileError as exc:
        problems = exc.problems
    assert all(re.match(r"job\.yaml(:\d+:\d+)?: ", problem) for problem in problems)
