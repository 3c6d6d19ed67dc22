"""The process that measures: how fast does this machine multiply matrices and read memory?

It runs as a program of its own (`python -m batchgen.capacity.measuring`), so that nothing comes in
(threads that an engine has pinned) and nothing stays behind (device memory, settings of torch), and
a machine that cannot do what is asked (an unknown instruction, a broken driver) ends this process
alone. The answer is one JSON line on stdout. Both rates are the best of several tries: other
programs only ever make a machine look slower.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

BUDGET_S: Final = 0.5
"""For each of the two rates; every shape is tried at least twice, whatever it takes."""
WEIGHTS_SHAPE: Final = (8192, 2048)
"""Output and input features: a layer of a model of some billion parameters."""
ROWS: Final = (64, 256, 512)
DEVICE_SHAPE: Final = (8192, 8192)
DEVICE_ROWS: Final = (512, 4096, 8192)
LEAST_READ_BYTES: Final = 256 * 2**20
MOST_READ_BYTES: Final = 512 * 2**20
"""More costs seconds for its first touch alone, and caches above that are shared by many cores."""


def measure(dtype: str, num_threads: int | None, device: str, budget_s: float) -> dict[str, Any]:
    """Both rates, and what they were measured with. Raises what torch raises."""
    import torch

    if num_threads is not None and device == "cpu":
        torch.set_num_threads(num_threads)
    with torch.inference_mode():
        return {
            "matmul_flops_per_s": _matmul_rate(torch, getattr(torch, dtype), device, budget_s),
            "memory_bytes_per_s": _read_rate(torch, device, budget_s),
            "num_threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            "torch": torch.__version__,
        }


def _matmul_rate(torch: Any, dtype: Any, device: str, budget_s: float) -> float:
    """Floating-point operations per second of a layer, the best of several numbers of rows."""
    on_cpu = device == "cpu"
    (outputs, inputs), sizes = (WEIGHTS_SHAPE, ROWS) if on_cpu else (DEVICE_SHAPE, DEVICE_ROWS)
    weights = torch.full((outputs, inputs), 0.5, dtype=dtype, device=device)
    best = 0.0
    for num_rows in sizes:
        rows = torch.full((num_rows, inputs), 0.5, dtype=dtype, device=device)

        def multiply(rows: Any = rows) -> None:
            torch.nn.functional.linear(rows, weights)

        seconds = _shortest_s(torch, multiply, device, budget_s / len(sizes))
        best = max(best, 2 * num_rows * inputs * outputs / seconds)
    return best


def _read_rate(torch: Any, device: str, budget_s: float) -> float:
    """Bytes per second of a matrix-vector product over more memory than caches hold."""
    num_columns = 8192
    num_rows = _read_bytes() // (4 * num_columns)
    matrix = torch.ones((num_rows, num_columns), dtype=torch.float32, device=device)
    vector = torch.ones(num_columns, dtype=torch.float32, device=device)
    seconds = _shortest_s(torch, lambda: torch.mv(matrix, vector), device, budget_s)
    return float(matrix.nbytes / seconds)


def _read_bytes() -> int:
    """Twice the last-level cache, within limits."""
    try:
        cache_bytes = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (OSError, ValueError):
        cache_bytes = 0
    return min(MOST_READ_BYTES, max(LEAST_READ_BYTES, 2 * cache_bytes))


def _shortest_s(torch: Any, action: Callable[[], object], device: str, budget_s: float) -> float:
    """The shortest of the tries that fit the budget, after one that warms up."""
    shortest = float("inf")
    began = time.perf_counter()
    for number in range(1000):
        start = time.perf_counter()
        action()
        if device == "cuda":
            torch.cuda.synchronize()
        if number:
            shortest = min(shortest, time.perf_counter() - start)
        if number >= 2 and time.perf_counter() - began > budget_s:
            break
    return shortest


def _use_cpus(cpus: str) -> None:
    """Leave the cores to which an engine may have bound the parent, and use these."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})


def main() -> None:
    """Measure as the arguments say, and print the answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cpus")
    parser.add_argument("--budget", type=float, default=BUDGET_S)
    given = parser.parse_args()
    if given.cpus:
        _use_cpus(given.cpus)
    answer = measure(given.dtype, given.threads, given.device, given.budget)
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
