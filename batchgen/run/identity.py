"""Whether a run directory and a job still belong together.

Four fingerprints are kept apart (prompt, model, sampling, output), and the input shards by
themselves. A rerun under another fingerprint would mix rows made in different ways, so it stops
and names the keys, old and new. Shards are recognized by size and modification time, else by the
content that was hashed part by part while it was first read: a shard that was only touched, or
that only grew, is no other shard.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchgen.config.fingerprint import Change, Fingerprint, differences
from batchgen.corpus.readers import PartLimits, ReadPoint, is_same_slice, read_blocks
from batchgen.errors import ResumeMismatch
from batchgen.output.parts import PartInfo, PartKey
from batchgen.records import Shard

INPUTS = "inputs"
"""What `--accept-change` calls changed shards."""


@dataclass(frozen=True, slots=True)
class InputChanges:
    """What has become of the shards that finished rows come from."""

    changed: tuple[str, ...] = ()
    vanished: tuple[str, ...] = ()
    grown: tuple[Shard, ...] = ()


def check_fingerprint(
    recorded: Mapping[str, Any],
    current: Fingerprint,
    *,
    path: str,
    accepted: Sequence[str],
) -> None:
    """Raise ResumeMismatch where finished rows were made under other settings.

    `accepted` holds keys (`sampling.max_tokens`) or whole sections (`sampling`).
    """
    changes = changes_beyond(recorded, current, accepted)
    if not changes:
        return
    flags = " ".join(f"--accept-change {change.key}" for change in changes)
    raise ResumeMismatch(
        [
            f"{path} holds rows of a job that differs from this one",
            *(f"  {change}" for change in changes),
            "undo the change to continue, set another output.path, start over with --fresh (which "
            f"discards the finished rows), or keep them beside the new ones with {flags}",
        ]
    )


def changes_beyond(
    recorded: Mapping[str, Any], current: Fingerprint, accepted: Sequence[str]
) -> list[Change]:
    """What differs, but for accepted keys and sections."""
    free = set(accepted)
    return [
        change
        for change in differences(recorded, current)
        if not free & {change.section, change.key}
    ]


def compare_inputs(
    shards: Iterable[Shard],
    recorded: Mapping[str, Mapping[str, Any]],
    parts: Mapping[PartKey, PartInfo],
    limits: PartLimits,
) -> InputChanges:
    """Compare the shards of today with those that the finished rows were made of."""
    by_name = {shard.name: shard for shard in shards}
    with_rows = {name for name, _ in parts}
    changed: list[str] = []
    grown: list[Shard] = []
    for name in sorted(with_rows & by_name.keys()):
        shard, old = by_name[name], recorded.get(name)
        if old is None or (old["num_bytes"], old["mtime_ns"]) == (shard.num_bytes, shard.mtime_ns):
            continue
        own = sorted((p for (of, _), p in parts.items() if of == name), key=lambda p: p.start_row)
        if not all(part.extent and is_same_slice(shard, part.extent, limits) for part in own):
            changed.append(name)
        elif shard.format != "parquet" and _has_more(shard, own[-1], limits):
            grown.append(shard)
    vanished = sorted(with_rows - by_name.keys())
    return InputChanges(tuple(changed), tuple(vanished), tuple(grown))


def refuse_changed(changes: InputChanges, *, path: str, accepted: Sequence[str]) -> None:
    """Raise ResumeMismatch where a shard with finished rows is not the one that it was."""
    if not changes.changed or INPUTS in accepted:
        return
    names = ", ".join(f"'{name}'" for name in changes.changed)
    raise ResumeMismatch(
        f"{path} holds rows of input that has changed since: {names}; restore the old content, "
        "give the new content a new file name (it is then picked up as a new shard), start over "
        "with --fresh, or keep the finished rows and read only the rest anew with "
        f"--accept-change {INPUTS}"
    )


def _has_more(shard: Shard, last: PartInfo, limits: PartLimits) -> bool:
    """Whether there are rows behind the shard's last part."""
    if last.extent is None or last.extent.shard_rows is None:
        return False
    point = ReadPoint(last.start_row, last.extent.source_start)
    blocks = read_blocks(shard, columns=(), limits=limits, start=point)
    return any(block.start_row + block.num_rows > last.extent.shard_rows for block in blocks)
