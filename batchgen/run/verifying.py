"""Outputs against inputs: `output/verify.py` is given the expected keys, here they are found.

The input is read again, so that the proof does not rest on what the run said of itself. Where
it cannot be found any more (another working directory, another machine), the manifest's word and
the extents in the parts have to do, and the report says so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import ArrowException, parquet
from pydantic import ValidationError

from batchgen.config.models import InputConfig
from batchgen.corpus.parquet import ParquetShard
from batchgen.corpus.readers import PartLimits, read_blocks
from batchgen.corpus.shards import find_shards
from batchgen.errors import DataError
from batchgen.output.layout import RunLayout
from batchgen.output.manifest import read_manifest
from batchgen.output.reading import part_files
from batchgen.output.verify import verify
from batchgen.records import Shard

PART_ROWS = 1_000_000
PART_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a proof has looked at, and everything that is wrong."""

    num_rows: int
    num_parts: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    """What could not be proved, and why."""


def verify_run(path: str | Path) -> VerifyReport:
    """Compare the outputs in a run directory with the input that its manifest names.

    Raises DataError where no run is there, or its files cannot be read.
    """
    layout = RunLayout.at(path)
    manifest = read_manifest(layout)
    if manifest is None:
        raise DataError(f"{path}: no run is here; give the directory that is output.path of a job")
    shards, notes = _find_inputs(manifest)
    problems = list(_changed(manifest, shards))
    expected = expected_rows(manifest, shards)
    problems += verify(layout, expected, counts=manifest["counts"] or None)
    files = part_files(layout)
    return VerifyReport(
        num_rows=sum(map(_num_rows, files)),
        num_parts=len(files),
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _num_rows(part: Path) -> int:
    """Rows of a part; 0 for a damaged one, which is a problem that has been found before."""
    try:
        return int(parquet.read_metadata(part).num_rows)
    except (ArrowException, OSError):
        return 0


def expected_rows(
    manifest: Mapping[str, Any], shards: Mapping[str, Shard]
) -> dict[str, int | None]:
    """Rows of each shard of the run, counted; None where the shard is not at hand.

    A run with `--limit` expects the first rows only; all runs of a directory share their limit.
    """
    on_bad_line = manifest["job"]["input"]["on_bad_line"]
    max_line_bytes = manifest["job"]["input"]["max_line_bytes"]
    limits = PartLimits(PART_ROWS, PART_BYTES, max_line_bytes, on_bad_line)
    left = manifest["runs"][-1]["options"].get("limit")
    expected: dict[str, int | None] = {}
    for name, facts in manifest["inputs"].items():
        if left == 0:
            expected[name] = 0
        elif name in shards:
            expected[name] = count_rows(shards[name], limits, max_rows=left)
        else:
            expected[name] = None
        if left is not None:
            left -= min(left, expected[name] or facts.get("num_rows", 0))
    return expected


def count_rows(shard: Shard, limits: PartLimits, *, max_rows: int | None = None) -> int:
    """Rows of a shard as a run counts them; at most `max_rows`."""
    if shard.format == "parquet":
        file = ParquetShard(shard)
        file.close()
        return file.num_rows if max_rows is None else min(file.num_rows, max_rows)
    blocks = read_blocks(shard, columns=(), limits=limits, max_rows=max_rows)
    return sum(block.extent.num_rows for block in blocks if block.extent is not None)


def _find_inputs(manifest: Mapping[str, Any]) -> tuple[dict[str, Shard], list[str]]:
    """The run's shards that are at hand, by name, and a note where some are not."""
    try:
        config = InputConfig.model_validate(manifest["job"]["input"])
        found = {shard.name: shard for shard in find_shards(config)}
    except (DataError, ValidationError):
        found = {}
    shards = {name: found[name] for name in manifest["inputs"] if name in found}
    absent = [name for name in manifest["inputs"] if name not in found]
    if not absent:
        return shards, []
    return shards, [
        f"{len(absent):,} of {len(manifest['inputs']):,} input shards cannot be found from here"
        f" (first: '{absent[0]}'), so their number of rows is taken from the parts; run verify in"
        " the directory in which the job was run"
    ]


def _changed(manifest: Mapping[str, Any], shards: Mapping[str, Shard]) -> Iterator[str]:
    for name, shard in shards.items():
        before = manifest["inputs"][name]["num_bytes"]
        if shard.num_bytes != before:
            yield (
                f"{name}: the input has changed since it was read: {before:,} bytes then,"
                f" {shard.num_bytes:,} now; run the job again"
            )
