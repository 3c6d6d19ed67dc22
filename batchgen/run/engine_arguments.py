"""Engine arguments that vLLM would refuse for this model, told before a plan is made of them.

Types and choices are checked when the job file is read. What is left depends on the model and on
the device: a plan from such a value would look as good as a right one.
"""

from collections.abc import Iterator
from typing import Final

from batchgen.capacity.geometry import Geometry
from batchgen.config.models import JobConfig
from batchgen.errors import JobFileError

GPU_BLOCK_STEP: Final = 16
CPU_BLOCK_STEP: Final = 32
"""Block sizes that vLLM's attention takes are multiples of these."""
PARALLEL: Final = ("tensor_parallel_size", "pipeline_parallel_size")


def check_engine_arguments(job: JobConfig, geometry: Geometry, *, on_cpu: bool) -> None:
    """Raise JobFileError with every argument in `model.extra` that cannot be."""
    problems = [
        f"{job.where(f'model.extra.{key}')}: {problem}"
        for key, problem in _problems(job, geometry, on_cpu=on_cpu)
    ]
    if problems:
        raise JobFileError(problems)


def _problems(job: JobConfig, geometry: Geometry, *, on_cpu: bool) -> Iterator[tuple[str, str]]:
    extra = job.model.extra
    share = extra.get("gpu_memory_utilization")
    if share is not None and not 0 < share <= 1:
        yield "gpu_memory_utilization", f"must be above 0 and at most 1, is {share:g}"
    for key in PARALLEL:
        size = extra.get(key)
        if size is not None and size < 1:
            yield key, f"must be 1 or more, is {size}"
    size = extra.get(PARALLEL[0]) or 1
    if size > 1 and geometry.num_heads % size:
        yield PARALLEL[0], _undivided(geometry.num_heads, size)
    step = CPU_BLOCK_STEP if on_cpu else GPU_BLOCK_STEP
    block = extra.get("block_size")
    if block is not None and (block < 1 or block % step):
        device = "CPU" if on_cpu else "GPU"
        yield "block_size", f"must be a multiple of {step} on a {device}, is {block}"


def _undivided(num_heads: int, size: int) -> str:
    allowed = ", ".join(str(n) for n in range(1, min(num_heads, 128) + 1) if num_heads % n == 0)
    return f"must divide the model's {num_heads} attention heads ({allowed}), is {size}"
