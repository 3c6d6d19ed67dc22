"""Equal prompts are generated once, and a failure is never copied."""

from batchgen.records import FinishedRow, Prompt, Sampling
from batchgen.schedule.dedupe import Admission, Dedupe, copy_row

GREEDY = Sampling({"temperature": 0.0}, b"greedy")
SAMPLED = Sampling({"temperature": 0.8}, b"sampled")


def prompt(row: int, token_ids=(1, 2), sampling=GREEDY) -> Prompt:
    return Prompt("a.jsonl", row, 0, list(token_ids), "text", sampling, None)


def finished(row: int, error_type=None) -> FinishedRow:
    return FinishedRow("a.jsonl", row, 0, output="out", num_output_tokens=1, error_type=error_type)


def test_the_first_leads_and_an_equal_one_is_held():
    dedupe = Dedupe()
    assert dedupe.admit(prompt(0)) is Admission.LEAD
    assert dedupe.admit(prompt(1)) is Admission.HELD


def test_a_leader_that_comes_back_after_a_death_leads_again():
    dedupe = Dedupe()
    dedupe.admit(prompt(0))
    assert dedupe.admit(prompt(0)) is Admission.LEAD


def test_held_prompts_become_copies_of_a_finished_leader():
    dedupe = Dedupe()
    for row in range(3):
        dedupe.admit(prompt(row))
    copies, successor = dedupe.settle(prompt(0), finished(0))
    assert [copy.row for copy in copies] == [1, 2]
    assert successor is None


def test_an_equal_prompt_that_comes_later_copies_at_once():
    dedupe = Dedupe()
    dedupe.admit(prompt(0))
    dedupe.settle(prompt(0), finished(0))
    assert dedupe.admit(prompt(7)) == finished(0)


def test_a_failed_leader_passes_the_lead_on():
    dedupe = Dedupe()
    for row in range(3):
        dedupe.admit(prompt(row))
    copies, successor = dedupe.settle(prompt(0), finished(0, "engine_error"))
    assert copies == []
    assert successor is not None
    assert dedupe.admit(successor) is Admission.LEAD
    copies, _ = dedupe.settle(successor, finished(1))
    assert [copy.row for copy in copies] == [2]


def test_sampled_prompts_are_never_shared():
    dedupe = Dedupe()
    assert dedupe.admit(prompt(0, sampling=SAMPLED)) is Admission.LEAD
    assert dedupe.admit(prompt(1, sampling=SAMPLED)) is Admission.LEAD


def test_other_sampling_or_other_tokens_are_no_duplicates():
    dedupe = Dedupe()
    dedupe.admit(prompt(0))
    other = Sampling({"temperature": 0.0, "max_tokens": 3}, b"other")
    assert dedupe.admit(prompt(1, sampling=other)) is Admission.LEAD
    assert dedupe.admit(prompt(2, token_ids=(2, 1))) is Admission.LEAD


def test_what_is_remembered_is_bounded_and_the_oldest_goes():
    dedupe = Dedupe(max_bytes=1000)
    for row in range(3):
        dedupe.admit(prompt(row, token_ids=[row]))
        dedupe.settle(prompt(row, token_ids=[row]), finished(row))
    assert dedupe.admit(prompt(9, token_ids=[0])) is Admission.LEAD
    assert dedupe.admit(prompt(9, token_ids=[2])) == finished(2)


def test_a_copy_names_its_leader_and_has_no_times():
    leader = finished(0)._replace(ttft_s=0.1, latency_s=0.2)
    copy = copy_row(leader, prompt(4), run_id="r", batch_id=3)
    assert (copy.row, copy.output, copy.duplicate_of) == (4, "out", "a.jsonl:0")
    assert copy.ttft_s is None
    assert copy.latency_s is None
    assert copy.num_output_tokens == 1
