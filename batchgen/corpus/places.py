"""How a shard is called in messages: by its path, relative to the working directory if below it."""

from pathlib import Path

from batchgen.records import Shard


def shown_path(shard: Shard) -> str:
    """The path that a user would type."""
    path = Path(shard.path)
    working = Path.cwd()
    return str(path.relative_to(working)) if path.is_relative_to(working) else shard.path


CHANGED = "it has changed since the last run: restore it, or run with --fresh"


def shrunk(shard: Shard, num_rows: int, expected: int) -> str:
    """What to say of a shard with fewer rows than before."""
    return f"{shown_path(shard)}: has {num_rows} rows, and {expected} were read before; {CHANGED}"
