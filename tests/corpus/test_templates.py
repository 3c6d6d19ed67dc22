import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchgen.corpus.templates import RowRefused, Template
from batchgen.errors import JobFileError
from batchgen.records import MISSING


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("{{ b }} {{ a }} {{ b }}", ("b", "a")),
        ("{% for t in tags %}{{ t }}{{ loop.index }}{% endfor %}", ("tags",)),
        ("{% set x = a %}{{ x }}", ("a",)),
        ("{{ a | upper }} {% if b %}{{ c.d }}{% endif %} {{ range(n) }}", ("a", "b", "c", "n")),
        ("plain {a}", ()),
    ],
)
def test_columns_are_the_names_that_the_template_does_not_set(text, columns):
    assert set(Template(text, "t").columns) == set(columns)


@given(text=st.text(), other=st.text())
def test_values_are_data_and_rendered_once(text, other):
    for source in ("{a} {{ x }}%s{{ y }}\n", "{a} {{ x | string }}%s{{ y }}\n"):
        template = Template(source, "t")
        assert template.render({"x": text, "y": other}) == f"{{a}} {text}%s{other}\n"


@given(values=st.tuples(st.text(), st.integers() | st.floats(allow_nan=False) | st.booleans()))
def test_the_format_of_a_simple_template_renders_as_jinja_does(values):
    template = Template("50% {{ x }}, {{ y }}", "t")
    assert template.format % values == template.render(dict(zip("xy", values, strict=True)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n{{ text }", "p: line 2 of the template: unexpected '}'; did you mean '{{ text }}'?"),
        ("{{ text | uper }}", "No filter named 'uper'. On line"),
        ("{% if text %}", "Unexpected end of template"),
        ("{% include 'x' %}{{ text }}", "cannot include"),
        ("{{ text", "unexpected end of template"),
    ],
)
def test_a_template_that_cannot_compile_is_a_job_file_error(text, message):
    with pytest.raises(JobFileError) as caught:
        Template(text, "p")
    assert message.split(". On")[0] in str(caught.value)


def test_an_unknown_filter_suggests_the_nearest():
    with pytest.raises(JobFileError, match="did you mean 'upper'"):
        Template("{{ text | uper }}", "p")


@pytest.mark.parametrize(
    ("text", "value", "error_type"),
    [
        ("{{ x }}", None, "null_prompt"),
        ("{{ x }}", float("nan"), "null_prompt"),
        ("{{ x }}", MISSING, "missing_column"),
        ("{{ x | upper }}", None, "null_prompt"),
        ("{{ x.title }}", {"title": None}, "template_error"),
        ("{{ x.titel }}", {"title": "t"}, "template_error"),
        ("{{ 1 / x }}", 0, "template_error"),
        ("{{ x + 1 }}", "text", "template_error"),
        ("{{ x.__class__.__mro__ }}", "text", "template_error"),
        ("{{ x[5] }}", [], "template_error"),
        ("{% if x %}{{ x }}{% endif %}{{ x }}", None, "null_prompt"),
        ("{{ x if x else '' }}{{ x }}", MISSING, "missing_column"),
        ("{% if x > 3 %}{{ x }}{% endif %}", None, "null_prompt"),
    ],
)
def test_a_row_that_cannot_be_rendered_is_refused(text, value, error_type):
    with pytest.raises(RowRefused) as caught:
        Template(text, "t").render({"x": value})
    assert caught.value.error.type == error_type


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("{% if x %}{{ x }}{% else %}none{% endif %}", None, "none"),
        ("{{ x or 'none' }}", None, "none"),
        ("{{ 'none' if x is none else x }}", None, "none"),
        ("{% if x is defined %}{{ x }}{% else %}none{% endif %}", MISSING, "none"),
        ("{{ x | default('none') }}", MISSING, "none"),
        ("{{ x | default('none', true) }}", None, "none"),
    ],
)
def test_a_column_that_the_template_tests_may_be_null_or_missing(text, value, expected):
    assert Template(text, "t").render({"x": value}) == expected
