"""The job's model section decides on engine and clock."""

from typing import Any

import pytest

from batchgen.config.models import ModelConfig, SamplingConfig
from batchgen.corpus.tokenizing import WordTokenizer
from batchgen.engine.clock import RealClock, SimulatedClock
from batchgen.engine.factory import create_engine, engine_clock
from batchgen.engine.simulated import SimulatedEngine
from batchgen.engine.zero_cost import ZeroCostEngine


def make_model(extra: dict[str, Any]) -> ModelConfig:
    return ModelConfig(engine="simulated", extra=extra, max_model_len=64, max_num_seqs=8)


@pytest.mark.parametrize(
    ("extra", "kind"),
    [
        ({}, SimulatedEngine),
        ({"zero_cost": True}, ZeroCostEngine),
        ({"zero_cost": True, "faults": {"die_after_rows": 3}}, SimulatedEngine),
        ({"zero_cost": True, "script": {"a:0": {"reply": "x"}}}, SimulatedEngine),
    ],
)
def test_zero_cost_takes_the_short_cut_only_without_directions(
    extra: dict[str, Any], kind: type
) -> None:
    engine = create_engine(make_model(extra), tokenizer=WordTokenizer(), sampling=SamplingConfig())
    assert type(engine) is kind
    assert (engine.info.max_model_len, engine.info.max_num_seqs) == (64, 8)


@pytest.mark.parametrize(
    ("extra", "kind"), [({}, RealClock), ({"clock": "simulated"}, SimulatedClock)]
)
def test_the_clock_is_real_unless_the_job_simulates_it(extra: dict[str, Any], kind: type) -> None:
    assert type(engine_clock(make_model(extra))) is kind


def test_the_engine_lives_on_the_clock_that_it_is_given() -> None:
    clock = SimulatedClock(start=100.0)
    engine = create_engine(
        make_model({"start_s": 5.0}),
        tokenizer=WordTokenizer(),
        sampling=SamplingConfig(),
        clock=clock,
    )
    assert engine.clock is clock
    assert clock.now() == 105.0
