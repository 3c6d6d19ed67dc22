"""How near a way of batching comes to the roofline: the least time that this machine needs for it.

The bound is taken at the way's own concurrency: one row at a time cannot share a read of the
weights, and is near its roofline although it is slow. The rates are measured when no engine runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from batchgen.bench.trials import Trial
from batchgen.capacity.geometry import Geometry, load_geometry
from batchgen.capacity.rates import Rates
from batchgen.capacity.roofline import Work, at_least_s
from batchgen.config.models import ModelConfig
from batchgen.errors import DataError
from batchgen.records import EngineInfo
from batchgen.run.limits import machine_rates


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A model on a machine."""

    geometry: Geometry
    rates: Rates

    @classmethod
    def find(
        cls, model: ModelConfig, engine: EngineInfo, cpus: Sequence[int], *, again: bool = False
    ) -> Self:
        """The model's size, and the machine's rates: from the cache, or measured now.

        `cpus` are the cores that the engine ran on; `again` measures although the cache knows.
        Raises a BatchgenError that says why the roofline is not known.
        """
        if engine.name != "vllm":
            raise DataError(f"the {engine.name} engine multiplies and reads nothing")
        if model.extra.get("speculative_config") or model.extra.get("speculative_model"):
            raise DataError("speculative decoding makes several tokens a step")
        geometry = load_geometry(model, dtype=str(engine.settings["dtype"]))
        return cls(geometry, machine_rates(geometry, engine, cpus, again=again))

    def fraction(self, trial: Trial) -> float | None:
        """Least time ÷ time that the trial took; None where its steps were not counted."""
        num_rows = trial.num_rows - trial.num_failed
        if trial.num_cached_tokens is None or not trial.num_steps or not num_rows:
            return None
        work = Work(
            num_rows=num_rows,
            num_prompt_tokens=trial.num_prompt_tokens,
            num_cached_tokens=trial.num_cached_tokens,
            num_output_tokens=trial.num_output_tokens,
            num_running_mean=trial.num_output_tokens / trial.num_steps,
            num_sequences=sum(len(row.completion.samples) for row in trial.rows),
        )
        return at_least_s(self.geometry, self.rates, work).total_s / trial.wall_s
