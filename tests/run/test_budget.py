"""The error budget stops a run in which everything fails, and no other."""

from batchgen.run.budget import ErrorBudget


def test_failures_before_two_hundred_rows_prove_nothing():
    budget = ErrorBudget(0.05, None)
    for _ in range(199):
        budget.finished("engine_error")
    assert budget.verdict() is None
    budget.finished("engine_error")
    assert budget.verdict() is not None


def test_the_message_says_share_budget_and_the_most_frequent_type():
    budget = ErrorBudget(0.05, None)
    for row in range(200):
        budget.finished("engine_error" if row >= 100 else None)
    verdict = budget.verdict()
    assert verdict is not None
    assert verdict.exit_code == 6
    for words in ("5%", "100 of 200", "50.0%", "engine_error"):
        assert words in verdict.reason


def test_a_share_at_the_limit_is_within_it():
    budget = ErrorBudget(0.5, None)
    for row in range(400):
        budget.finished("engine_error" if row % 2 else None)
        assert budget.verdict() is None


def test_a_long_good_stretch_does_not_hide_an_engine_that_fails_everything_now():
    budget = ErrorBudget(0.2, None)
    for _ in range(100_000):
        budget.finished(None)
    for _ in range(200):
        budget.finished("engine_error")
    assert budget.verdict() is None
    budget.finished("engine_error")
    assert budget.verdict() is not None


def test_refused_rows_count_against_all_rows_read():
    budget = ErrorBudget(0.5, None)
    for row in range(400):
        if row % 4 == 0:
            budget.finished(None)
        else:
            budget.refused("empty_prompt")
    verdict = budget.verdict()
    assert verdict is not None
    assert "empty_prompt" in verdict.reason


def test_copies_are_rows_that_were_read():
    budget = ErrorBudget(0.5, None)
    for _ in range(150):
        budget.refused("empty_prompt")
        budget.copied()
        budget.copied()
    assert budget.verdict() is None


def test_a_number_of_rows_is_a_limit_too():
    budget = ErrorBudget(None, 3)
    for _ in range(3):
        budget.refused("bad_json")
    assert budget.verdict() is None
    budget.refused("bad_json")
    assert budget.verdict() is not None


def test_no_budget_never_stops():
    budget = ErrorBudget(None, None)
    for _ in range(5000):
        budget.finished("engine_error")
    assert budget.verdict() is None
