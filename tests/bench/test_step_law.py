"""The law t = a + b·n: recovered where it holds, honest about its error where it does not."""

import doctest

import pytest

from batchgen.bench import step_law
from batchgen.bench.step_law import StepPoint, fit_step_law, relative_errors

SIZES = (1, 2, 4, 16, 64)


def line(a_s, b_s):
    return [StepPoint(n, a_s + b_s * n) for n in SIZES]


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(step_law).failed == 0


@pytest.mark.parametrize(("a_s", "b_s"), [(0.020, 0.002), (0.113, 0.0069), (0.0065, 0.000081)])
def test_a_line_is_recovered(a_s, b_s):
    law = fit_step_law(line(a_s, b_s))
    assert law.a_s == pytest.approx(a_s)
    assert law.b_s == pytest.approx(b_s)
    assert law.asymptote == pytest.approx(1 + a_s / b_s)
    assert law.max_error == pytest.approx(0, abs=1e-9)


def test_the_speed_up_approaches_the_asymptote_from_below():
    law = fit_step_law(line(0.020, 0.002))
    gains = [law.speedup(n) for n in (1, 8, 64, 512, 4096)]
    assert gains[0] == pytest.approx(1)
    assert gains == sorted(gains)
    assert gains[-1] < law.asymptote < 1.02 * gains[-1]


def test_the_largest_error_is_reported():
    points = [*line(0.020, 0.002), StepPoint(128, 0.5)]
    law = fit_step_law(points)
    errors = relative_errors(law, points)
    assert law.max_error == pytest.approx(max(abs(error) for error in errors))
    assert law.max_error > 0.1


def test_short_steps_count_as_much_as_long_ones():
    points = [StepPoint(1, 0.011), StepPoint(2, 0.012), StepPoint(64, 0.090)]
    assert fit_step_law(points).max_error < 0.1


def test_steps_that_do_not_grow_have_no_asymptote():
    law = fit_step_law([StepPoint(1, 0.010), StepPoint(2, 0.010), StepPoint(4, 0.0099)])
    assert law.b_s == 0
    assert law.asymptote is None


def test_steps_in_proportion_gain_nothing():
    law = fit_step_law([StepPoint(1, 0.010), StepPoint(2, 0.0202), StepPoint(4, 0.041)])
    assert law.a_s == 0
    assert law.asymptote == 1


def test_two_sizes_make_no_law():
    assert fit_step_law([StepPoint(1, 0.01), StepPoint(4, 0.02), StepPoint(4, 0.021)]) is None
