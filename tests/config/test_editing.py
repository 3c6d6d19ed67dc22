"""Values change in place; everything else in the file stays, to the last character."""

import doctest
import os

import pytest

from batchgen.config import editing
from batchgen.config.editing import changed_lines, check_rewritable, edit_job_text, rewrite_job
from batchgen.errors import JobFileError

COMMENTED = """\
# The night job.
name: night   # shown in reports

model:                    # which model
  name: models/tiny
  max_num_seqs:   64      # slots
  # memory:
  max_model_len: 2048

batch: {size: 512,  order: input}   # one line

output:
  path: "runs/night"      # here

# the end
"""


def edited(text, **changes):
    return edit_job_text(
        text, "job.yaml", {key.replace("__", "."): v for key, v in changes.items()}
    )


def test_examples_in_docstrings_hold():
    results = doctest.testmod(editing)
    assert results.attempted
    assert not results.failed


def test_a_value_is_replaced_where_it_stands():
    assert edited(COMMENTED, model__max_num_seqs=48) == COMMENTED.replace("64  ", "48  ")


def test_a_value_in_a_section_on_one_line_is_replaced():
    wanted = COMMENTED.replace("order: input", "order: prefix")
    assert edited(COMMENTED, batch__order="prefix") == wanted


def test_several_keys_at_once():
    text = edited(COMMENTED, model__max_num_seqs=48, batch__order="prefix")
    assert text == COMMENTED.replace("64  ", "48  ").replace("order: input", "order: prefix")


def test_an_absent_key_becomes_a_line_of_its_section():
    before = "model:\n  name: m   # small\n\n# next\noutput: {path: out}\n"
    wanted = "model:\n  name: m   # small\n  max_num_seqs: 48\n\n# next\noutput: {path: out}\n"
    assert edited(before, model__max_num_seqs=48) == wanted


def test_an_absent_key_keeps_the_indent_of_its_section():
    before = "model:\n     name: m\n"
    assert edited(before, model__max_num_seqs=48) == "model:\n     name: m\n     max_num_seqs: 48\n"


def test_an_absent_key_goes_into_a_section_on_one_line():
    before = "model: {name: m, max_model_len: 9 }  # x\n"
    wanted = "model: {name: m, max_model_len: 9, max_num_seqs: 48 }  # x\n"
    assert edited(before, model__max_num_seqs=48) == wanted


def test_an_absent_section_is_added_at_the_end():
    assert edited("model: {name: m}", batch__order="prefix") == (
        "model: {name: m}\nbatch:\n  order: prefix\n"
    )


def test_an_empty_section_gets_its_first_key():
    before = "model: {name: m}\nbatch:   # nothing yet\noutput: {path: out}\n"
    wanted = "model: {name: m}\nbatch:   # nothing yet\n  order: prefix\noutput: {path: out}\n"
    assert edited(before, batch__order="prefix") == wanted


@pytest.mark.parametrize("nothing", ["null", "~", "{}"])
def test_a_section_that_says_nothing_is_filled(nothing):
    assert edited(f"batch: {nothing}  # x\n", batch__order="prefix") == (
        "batch: {order: prefix}  # x\n"
    )


def test_a_key_two_levels_down_brings_its_section():
    before = "model:\n  name: m\n"
    wanted = "model:\n  name: m\n  extra: {max_num_batched_tokens: 8192}\n"
    assert edited(before, model__extra__max_num_batched_tokens=8192) == wanted


def test_a_null_is_replaced():
    assert edited("model: {max_num_seqs: null}\n", model__max_num_seqs=48) == (
        "model: {max_num_seqs: 48}\n"
    )


def test_a_value_that_is_not_there_is_written():
    assert edited("model:\n  max_num_seqs:\n  name: m\n", model__max_num_seqs=48) == (
        "model:\n  max_num_seqs: 48\n  name: m\n"
    )


def test_a_section_that_ends_in_a_block_of_text():
    before = "prompt:\n  template: |\n    Say it:\n\n    {{ text }}\n\nmodel: {name: m}\n"
    wanted = before.replace("prompt:\n", "prompt:\n  allow_blank: true\n")
    assert edited(before, prompt__allow_blank=True) == wanted


def test_a_job_in_json_stays_json():
    assert edited('{"model": {"name": "m"}, "output": {"path": "out"}}', batch__order="prefix") == (
        '{"model": {"name": "m"}, "output": {"path": "out"}, "batch": {"order": "prefix"}}'
    )


def test_line_ends_of_windows_stay():
    before = "model:\r\n  name: m\r\n"
    assert edited(before, model__max_num_seqs=48) == "model:\r\n  name: m\r\n  max_num_seqs: 48\r\n"


def test_a_file_without_a_last_line_end():
    assert edited("model:\n  name: m", model__max_num_seqs=48) == (
        "model:\n  name: m\n  max_num_seqs: 48\n"
    )


def test_comments_beside_a_flow_section_of_several_lines_stay():
    before = "model: {\n  name: m,  # small\n  max_model_len: 9  # short\n}\n"
    after = edited(before, model__max_num_seqs=48)
    assert after == (
        "model: {\n  name: m,  # small\n  max_model_len: 9, max_num_seqs: 48  # short\n}\n"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("slots: &n 16\nmodel:\n  max_num_seqs: *n\n", r"job.yaml:3:3: .*alias"),
        ("model:\n  max_num_seqs: &n 16\nslots: *n\n", "anchor"),
        ("model:\n  max_num_seqs: ${BATCHGEN_TEST_SLOTS:-16}\n", "BATCHGEN_TEST_SLOTS"),
        ("model:\n  max_num_seqs: [1]\n", "a mapping or a list"),
        ("model: 7\n", "no mapping"),
    ],
)
def test_what_needs_a_guess_is_refused_with_its_place(text, why):
    with pytest.raises(JobFileError, match=why):
        edited(text, model__max_num_seqs=48)


def test_a_key_that_a_merge_brings_is_set_beside_it():
    before = "base: &b {max_num_seqs: 16}\nmodel:\n  <<: *b\n  name: m\n"
    wanted = before.replace("  name: m\n", "  name: m\n  max_num_seqs: 48\n")
    assert edited(before, model__max_num_seqs=48) == wanted


def test_the_diff_shows_what_changes():
    after = edited(COMMENTED, model__max_num_seqs=48)
    lines = list(changed_lines(COMMENTED, after, "job.yaml"))
    assert "-  max_num_seqs:   64      # slots" in lines
    assert "+  max_num_seqs:   48      # slots" in lines


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(COMMENTED)
    return path


def test_a_file_is_rewritten_and_keeps_its_permissions(job_file):
    job_file.chmod(0o640)
    after = rewrite_job(job_file, job_file.read_bytes(), {"model.max_num_seqs": 48})
    assert job_file.read_text() == after == COMMENTED.replace("64  ", "48  ")
    assert job_file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in job_file.parent.iterdir()] == ["job.yaml"]


def test_a_link_stays_a_link(job_file, tmp_path):
    link = tmp_path / "link.yaml"
    link.symlink_to(job_file)
    rewrite_job(link, link.read_bytes(), {"model.max_num_seqs": 48})
    assert link.is_symlink()
    assert "48  " in job_file.read_text()


def test_a_file_that_has_changed_meanwhile_is_left_alone(job_file):
    before = job_file.read_bytes()
    job_file.write_text(COMMENTED + "# by someone else\n")
    with pytest.raises(JobFileError, match=r"has changed.*model.max_num_seqs: 48"):
        rewrite_job(job_file, before, {"model.max_num_seqs": 48})
    assert job_file.read_text() == COMMENTED + "# by someone else\n"


def test_a_byte_order_mark_stays(job_file):
    job_file.write_text(COMMENTED, encoding="utf-8-sig")
    rewrite_job(job_file, job_file.read_bytes(), {"model.max_num_seqs": 48})
    assert job_file.read_bytes().startswith(b"\xef\xbb\xbf# The night")


def test_a_file_that_cannot_be_replaced_is_said(job_file):
    before = job_file.read_bytes()
    job_file.with_name(f".job.yaml.{os.getpid()}.tmp").mkdir()
    with pytest.raises(JobFileError, match="cannot be written"):
        rewrite_job(job_file, before, {"model.max_num_seqs": 48})
    assert job_file.read_bytes() == before


def test_asking_whether_a_file_can_be_changed_changes_nothing(job_file):
    check_rewritable(job_file, job_file.read_bytes(), {"model.max_num_seqs": 1})
    assert job_file.read_text() == COMMENTED
    assert list(job_file.parent.iterdir()) == [job_file]


def test_a_value_that_cannot_be_changed_is_said_when_asked(job_file):
    before = COMMENTED.replace("  64 ", "  ${SLOTS:-64} ").encode()
    with pytest.raises(JobFileError, match="max_num_seqs: its value is"):
        check_rewritable(job_file, before, {"model.max_num_seqs": 1})


def test_a_directory_that_takes_no_file_is_said_when_asked(tmp_path):
    with pytest.raises(JobFileError, match="cannot be written"):
        check_rewritable(tmp_path / "gone/job.yaml", COMMENTED.encode(), {"name": "day"})
