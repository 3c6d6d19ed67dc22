"""From the job's model section to an engine and the clock it lives on."""

import os
from typing import TYPE_CHECKING

from batchgen.config.models import ModelConfig, SamplingConfig
from batchgen.engine.clock import RealClock, SimulatedClock
from batchgen.engine.vllm_settings import default_block_tokens, settings_for
from batchgen.protocols import Clock, Engine, Tokenizer

if TYPE_CHECKING:
    from batchgen.engine.faults import FaultState

SIMULATED_MODEL_LEN = 4096
SIMULATED_NUM_SEQS = 256


def create_engine(
    model: ModelConfig,
    *,
    tokenizer: Tokenizer,
    sampling: SamplingConfig,
    clock: Clock | None = None,
    faults: "FaultState | None" = None,
) -> Engine:
    """Start the engine that the job names; it may take minutes, and holds the device until closed.

    Pass the same `faults` to each engine of a run: it is what simulated engines remember of the
    ones before. Raises EngineNotInstalled, EngineError where the engine cannot start, and
    JobFileError for settings that it does not know.
    """
    clock = clock or engine_clock(model)
    match model.engine:
        case "simulated":
            return _simulated(model, clock, faults)
        case "vllm":
            from batchgen.engine.vllm import VllmEngine

            return VllmEngine(model, clock=clock)


def prepare_environment(model: ModelConfig) -> None:
    """Set environment variables that this engine needs before torch is imported.

    Call it before anything imports torch (loading a tokenizer does). What the user has set stays.
    """
    if model.engine == "vllm":
        os.environ.update(settings_for(model, os.environ).environment)


def kv_block_tokens(model: ModelConfig) -> int:
    """Tokens of one KV block, the unit of prefix reuse, as far as it can be told before a start.

    vLLM's own choice may differ for models whose attention needs other blocks.
    """
    if model.engine == "simulated":
        return model.simulated().kv_block_tokens
    given = model.extra.get("block_size")
    return given if isinstance(given, int) else default_block_tokens()


def known_model_len(model: ModelConfig) -> int | None:
    """Most tokens of prompt and completion, where no engine has to be asked for them.

    Then prompts can be made while the engine starts.
    """
    if model.max_model_len is None and model.engine == "simulated":
        return SIMULATED_MODEL_LEN
    return model.max_model_len


def engine_clock(model: ModelConfig) -> Clock:
    """The clock of a run with this model: real, unless the job simulates time as well."""
    if model.engine == "simulated" and model.extra.get("clock") == "simulated":
        return SimulatedClock()
    return RealClock()


def _simulated(model: ModelConfig, clock: Clock, faults: "FaultState | None") -> Engine:
    from batchgen.engine.simulated import SimulatedEngine
    from batchgen.engine.zero_cost import ZeroCostEngine

    options = model.simulated()
    max_model_len = model.max_model_len or SIMULATED_MODEL_LEN
    max_num_seqs = model.max_num_seqs or SIMULATED_NUM_SEQS
    if options.zero_cost and not options.is_scripted:
        return ZeroCostEngine(max_model_len=max_model_len, max_num_seqs=max_num_seqs, clock=clock)
    return SimulatedEngine(
        options.without_costs() if options.zero_cost else options,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        clock=clock,
        faults=faults,
    )
