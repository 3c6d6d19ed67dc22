"""The price of a prompt token comes out of the durations of steps, whatever else is in them."""

import random

import pytest

from batchgen.stats.step_cost import StepCost


def watched(steps, fixed_s=0.01, sequence_s=0.0005, token_s=0.0001, noise=0.0):
    """A cost that has seen `steps`: (sequences, prompt tokens) of each."""
    rng = random.Random(0)
    cost = StepCost()
    for num_running, num_prompt_tokens in steps:
        seconds = fixed_s + num_running * sequence_s + num_prompt_tokens * token_s
        cost.observe(
            seconds * (1 + noise * rng.uniform(-1, 1)),
            num_steps=1,
            num_output_tokens=num_running,
            num_prefill_tokens=num_prompt_tokens,
        )
    return cost


def mixed(count, slots=64):
    rng = random.Random(1)
    return [(slots, rng.choice([0, 0, 300, 500])) for _ in range(count)]


def test_with_full_slots_the_price_is_exact():
    assert watched(mixed(100)).prefill_token_s == pytest.approx(0.0001)


def test_with_slots_that_empty_it_is_exact_as_well():
    steps = [(running, prompt) for (_, prompt), running in zip(mixed(200), range(200), strict=True)]
    assert watched(steps).prefill_token_s == pytest.approx(0.0001)


def test_it_survives_a_noisy_machine():
    assert watched(mixed(2000), noise=0.2).prefill_token_s == pytest.approx(0.0001, rel=0.2)


def test_many_steps_in_one_observation_are_many_steps():
    cost = StepCost()
    for number in range(40):
        num_steps, num_tokens = 1 + number % 7 * 5, 100 * (number % 3)
        cost.observe(
            num_steps * 0.02 + num_tokens * 0.001,
            num_steps=num_steps,
            num_output_tokens=num_steps * 8,
            num_prefill_tokens=num_tokens,
        )
    assert cost.prefill_token_s == pytest.approx(0.001)


def test_a_prompt_that_is_counted_in_the_last_of_its_steps_has_the_price_of_all():
    cost = StepCost()
    for number in range(400):
        place = number % 40
        is_prefill = place in (8, 9, 10, 11)
        cost.observe(
            0.02 + (0.1 if is_prefill else 0.0),
            num_steps=1,
            num_output_tokens=8,
            num_prefill_tokens=4000 if place == 11 else 0,
        )
    assert cost.prefill_token_s == pytest.approx(0.4 / 4000)


@pytest.mark.parametrize(
    "steps",
    [[], mixed(20), [(64, 0)] * 500, [(64, 100)] * 500],
    ids=["none", "too few", "no prompts", "always the same"],
)
def test_steps_that_do_not_tell_give_no_price(steps):
    assert watched(steps).prefill_token_s is None


def test_a_price_is_never_negative():
    assert watched(mixed(500), token_s=-0.00001).prefill_token_s == 0
