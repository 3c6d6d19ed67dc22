"""Whether the disk can take a run, looked at before a model is loaded for it.

The estimate is rough on purpose: kept input once, texts at `BYTES_PER_TOKEN` for each token that
the job allows, and a share for the journal while its parts are not published. A disk that is
nearly full is refused; one that may become full during the run is a warning, since prompts rarely
use all the tokens that they may.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

from batchgen.errors import DataError
from batchgen.records import Shard

LEAST_FREE_BYTES = 64 * 2**20
"""What journal, parts and log of even a small run need to end in good order."""
BYTES_PER_TOKEN = 4
"""English text; compression by Parquet is left out."""
JOURNAL_SHARE = 0.1
"""Of the output, at most so much waits in the journal at a time."""


def space_problem(
    free_bytes: int, shards: Iterable[Shard], num_rows: int | None, max_tokens: int | None
) -> str | None:
    """A warning where the output may not fit into `free_bytes`; None where it will.

    Raises DataError where there is no room to begin. `num_rows` and `max_tokens` None: unknown.
    """
    if free_bytes < LEAST_FREE_BYTES:
        raise DataError(
            f"output.path: only {free_bytes / 2**20:.0f} MiB are free on its disk; free some "
            f"space (at least {LEAST_FREE_BYTES / 2**20:.0f} MiB), or set output.path to another "
            "disk"
        )
    texts = (num_rows or 0) * (max_tokens or 0) * BYTES_PER_TOKEN
    wanted = (sum(shard.num_bytes for shard in shards) + texts) * (1 + JOURNAL_SHARE)
    if wanted <= free_bytes:
        return None
    return (
        f"the output may need {wanted / 2**30:.1f} GiB and {free_bytes / 2**30:.1f} GiB are free "
        "on the disk of output.path; a full disk stops the run in good order (exit 4), and it "
        "goes on once there is space"
    )


def free_bytes(path: Path) -> int:
    """Free space on the disk of a directory that exists."""
    return shutil.disk_usage(path).free
