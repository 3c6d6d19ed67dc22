"""The device that a capacity plan is for: one of the table, a size of memory, or this CPU.

A named device is planned for with vLLM's settings on a GPU, whatever machine the plan is made on.
For the CPU they are the settings that a run on this machine would choose, and its rates are
measured here. Memory alone says how much fits, and nothing about time.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from batchgen.capacity.devices import DEVICES, Device, device_of_driver, find_device
from batchgen.capacity.fit import EngineLimits, gpu_limits
from batchgen.capacity.geometry import Geometry
from batchgen.capacity.rates import Rates, measured_rates
from batchgen.config.models import ModelConfig
from batchgen.config.wording import nearest
from batchgen.engine.vllm_settings import (
    KV_CACHE_SPACE,
    ChosenSettings,
    Machine,
    choose_settings,
    this_machine,
)
from batchgen.errors import EngineError, UsageError
from batchgen.run.doctor import find_gpus

CPU: Final = "cpu"
CPU_BLOCK_TOKENS: Final = 128
CPU_SLOTS: Final = 256
CPU_STEP_TOKENS: Final = 4096
"""vLLM's defaults on a CPU (0.32)."""
GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Target:
    """What is planned for. `memory_bytes` is that of one device; None: whatever a run takes."""

    name: str
    kind: str
    """`gpu`, `cpu` or `memory`."""
    memory_bytes: int | None
    source: str
    device: Device | None = None
    is_here: bool = False
    """Whether it is a device of this machine."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How the engine would run on a target."""

    limits: EngineLimits
    dtype: str | None
    """None: what vLLM makes of the job and the checkpoint."""
    num_threads: int | None = None
    available_bytes: int | None = None
    """Free memory of this machine, where the plan is for it."""


def choose_target(name: str | None, memory_bytes: int | None) -> tuple[Target, list[str]]:
    """The target that the options ask for, and what should be said about the choice.

    Without a name and memory it is the GPU of this machine, if the table has it, else its CPU.
    Raises UsageError for a name that is not known.
    """
    if name is None and memory_bytes is not None:
        return Target(f"{memory_bytes / 1e9:g} GB", "memory", memory_bytes, "--memory"), []
    if name is None:
        return _here()
    if name.lower() == CPU:
        return _cpu(memory_bytes), []
    device = find_device(name)
    if device is None:
        names = [*(device.name for device in DEVICES), CPU]
        raise UsageError(
            f"--device: '{name}' is not known{nearest(name, names)}; known: {', '.join(names)};"
            " for another one give --memory: that plans what fits, without times"
        )
    is_here = any(device_of_driver(_driver_name(line)) is device for line in find_gpus())
    return replace(_named(device, memory_bytes), is_here=is_here), []


def _named(device: Device, memory_bytes: int | None) -> Target:
    return Target(device.name, "gpu", memory_bytes or device.memory_bytes, device.source, device)


def _cpu(memory_bytes: int | None = None) -> Target:
    return Target(CPU, "cpu", memory_bytes, "this machine", is_here=True)


def _here() -> tuple[Target, list[str]]:
    gpus = find_gpus()
    if not gpus:
        return _cpu(), []
    name, memory = _driver_name(gpus[0]), gpus[0].partition(",")[2]
    device = device_of_driver(name)
    if device is None:
        return _cpu(), [
            f"the GPU '{name}' is not in the table of devices: planned for the CPU; give"
            " --memory to plan what fits, or the nearest --device"
        ]
    mebibytes = memory.split()[0] if memory.split() else ""
    known = int(mebibytes) * 2**20 if mebibytes.isdigit() else device.memory_bytes
    return replace(_named(device, known), is_here=True), []


def _driver_name(line: str) -> str:
    """The name in a line of `nvidia-smi`, before the memory."""
    return line.partition(",")[0].strip()


def choose_setting(
    model: ModelConfig,
    target: Target,
    config: Mapping[str, Any],
    *,
    max_model_len: int | None,
) -> Setting:
    """The settings with which the job's engine would run there."""
    if target.kind == "cpu":
        return _cpu_setting(model, target, config)
    limits = gpu_limits(
        model.extra,
        max_num_seqs=model.max_num_seqs,
        max_model_len=max_model_len,
        memory_bytes=target.memory_bytes or 0,
        device_name=target.name,
    )
    return Setting(limits, None)


def _cpu_setting(model: ModelConfig, target: Target, config: Mapping[str, Any]) -> Setting:
    machine = replace(this_machine(), is_cpu=True)
    chosen = cpu_choice(model, config, machine)
    arguments = chosen.arguments
    kv_cache_bytes = arguments.get("kv_cache_memory_bytes")
    if KV_CACHE_SPACE in os.environ and not isinstance(kv_cache_bytes, int):
        kv_cache_bytes = _gibibytes(os.environ[KV_CACHE_SPACE])
    if target.memory_bytes is not None:
        kv_cache_bytes = None
    limits = EngineLimits(
        block_tokens=model.extra.get("block_size") or CPU_BLOCK_TOKENS,
        max_num_seqs=model.max_num_seqs or CPU_SLOTS,
        max_num_batched_tokens=arguments.get("max_num_batched_tokens") or CPU_STEP_TOKENS,
        memory_share=1.0,
        kv_cache_bytes=kv_cache_bytes,
        prefix_caching=model.extra.get("enable_prefix_caching") is not False,
        has_workspace=False,
    )
    threads = os.environ.get("OMP_NUM_THREADS") or chosen.environment.get("OMP_NUM_THREADS")
    return Setting(
        limits,
        arguments.get("dtype"),
        int(threads) if threads else None,
        machine.available_bytes,
    )


def cpu_choice(model: ModelConfig, config: Mapping[str, Any], machine: Machine) -> ChosenSettings:
    """What a run of this job would choose for vLLM on this machine's CPU."""
    return choose_settings(
        model.extra,
        max_num_seqs=model.max_num_seqs,
        max_model_len=model.max_model_len,
        model_config=config,
        machine=machine,
        environment=os.environ,
    )


def _gibibytes(text: str) -> int | None:
    return int(text) * GIB if text.isdigit() and int(text) else None


def target_rates(
    target: Target, setting: Setting, geometry: Geometry, *, is_asked: bool
) -> tuple[Rates | None, list[str]]:
    """The rates of one replica's devices; None with the reason where there are none.

    Where the user asked for the CPU (`is_asked`), failing to measure it raises EngineError.
    """
    if target.device is not None:
        rates = target.device.rates(geometry.matmul_dtype)
        return rates.times(setting.limits.num_devices), []
    if target.kind == "memory":
        return None, []
    try:
        return measured_rates(geometry.dtype, setting.num_threads), []
    except EngineError as exc:
        if is_asked:
            raise
        return None, [f"{problem}; times are not known" for problem in exc.problems]
