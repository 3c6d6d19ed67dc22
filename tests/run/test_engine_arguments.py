"""Engine arguments that no engine takes are told, all at once."""

from types import SimpleNamespace

import pytest

from batchgen.capacity.geometry import Geometry
from batchgen.errors import JobFileError
from batchgen.run.engine_arguments import check_engine_arguments

GEOMETRY = Geometry("m", 2, 64, 1000, 9, 3, 64, 10**6, 10**6, 2 * 10**6, 2.0, 1024)


def check(on_cpu=False, **extra):
    job = SimpleNamespace(model=SimpleNamespace(extra=extra), where=lambda key: key)
    check_engine_arguments(job, GEOMETRY, on_cpu=on_cpu)


def test_every_problem_is_told():
    with pytest.raises(JobFileError) as caught:
        check(gpu_memory_utilization=0, pipeline_parallel_size=-2, block_size=7)
    keys = [problem.partition(":")[0] for problem in caught.value.problems]
    assert keys == [
        "model.extra.gpu_memory_utilization",
        "model.extra.pipeline_parallel_size",
        "model.extra.block_size",
    ]


def test_heads_are_named_with_the_sizes_that_divide_them():
    with pytest.raises(JobFileError, match=r"9 attention heads \(1, 3, 9\), is 2"):
        check(tensor_parallel_size=2)


def test_a_cpu_takes_larger_blocks_than_a_gpu():
    check(block_size=48)
    with pytest.raises(JobFileError, match="multiple of 32 on a CPU, is 48"):
        check(on_cpu=True, block_size=48)


def test_what_an_engine_takes_passes():
    check(gpu_memory_utilization=1, tensor_parallel_size=3, block_size=None)
