"""batchgen runs a language model over a whole corpus: shards of prompts in, Parquet out.

    import batchgen
    summary = batchgen.run_job(batchgen.load_job("jobs/quickstart.yaml"))
    outputs = batchgen.read_outputs(summary.output_path)

Names are loaded on first use, so that `import batchgen` (and `batchgen --help`) stays quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchgen.config.loading import load_job as load_job
    from batchgen.output.reading import read_batches as read_batches
    from batchgen.output.reading import read_outputs as read_outputs
    from batchgen.run.job import run_job as run_job

__version__ = "0.1.0"
__all__ = ["__version__", "load_job", "read_batches", "read_outputs", "run_job"]

_HOMES = {
    "load_job": "batchgen.config.loading",
    "read_batches": "batchgen.output.reading",
    "read_outputs": "batchgen.output.reading",
    "run_job": "batchgen.run.job",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'batchgen' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
