"""Rules that stop rows early: checked when the job file is read."""

import json

import pytest

from batchgen.config.fingerprint import differences, fingerprint


def test_without_rules_nothing_is_stopped(load):
    assert not load().stop_early.is_active
    assert load().stop_early.values() == {}
    assert not load(stop_early={"repetition": False}).stop_early.is_active


@pytest.mark.parametrize(
    "rules", [{"pattern": "END"}, {"max_seconds": 0.5}, {"repetition": True}, {"repetition": {}}]
)
def test_one_rule_is_enough(load, rules):
    assert load(stop_early=rules).stop_early.is_active


def test_true_means_the_defaults_of_looping(load):
    values = {"max_pattern_chars": 500, "min_count": 4, "min_chars": 200}
    for repetition in (True, {"min_count": 4}):
        rules = load(stop_early={"repetition": repetition}).stop_early
        assert rules.values() == {"repetition": values}


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("{pattern: '(a'}", "pattern: is no regular expression of Python's re: missing )"),
        ("{pattern: 'a*'}", "pattern: matches the empty text, so every row would stop at once"),
        ("{pattern: 5}", "pattern: must be text, is 5; put it in quotes"),
        ("{max_seconds: 0}", "max_seconds: must be greater than 0, is 0"),
        ("{max_seconds: .inf}", "max_seconds: must be a finite number"),
        ("{repetition: 5}", "repetition: must be true or false or a mapping"),
        ("{repetition: {min_count: 1}}", "repetition.min_count: must be at least 2, is 1"),
        ("{repetition: {min_chars: 9}}", "repetition.min_chars: must be at least 32, is 9"),
        ("{repetition: {max_chars: 9}}", "repetition.max_chars: no such key; did you mean"),
        ("{regex: END}", "regex: no such key; write stop_early.pattern"),
        ("{patern: END}", "patern: no such key; did you mean 'pattern'?"),
    ],
)
def test_a_bad_rule_is_named_with_its_place(problems, rules, problem):
    (line,) = problems(
        "input: {paths: [x]}\nprompt: {column: t}\nmodel: {name: m}\noutput: {path: o}\n"
        f"stop_early: {rules}\n"
    )
    place, _, sentence = line.partition(": stop_early.")
    assert place.startswith("job.yaml:5:")
    assert sentence.startswith(problem)


def taken(job):
    return json.loads(json.dumps(fingerprint(job, model_digest="abc")))


def test_a_rule_changes_outputs(load):
    old, new = taken(load()), taken(load(stop_early={"pattern": "END", "repetition": True}))
    assert [str(change) for change in differences(old, new)] == [
        "stop_early.pattern: not set → 'END'",
        "stop_early.repetition.max_pattern_chars: not set → 500",
        "stop_early.repetition.min_count: not set → 4",
        "stop_early.repetition.min_chars: not set → 200",
    ]


def test_a_job_without_rules_has_the_fingerprint_that_it_always_had(load):
    assert not any("stop_early" in key for key in taken(load())["sampling"])
