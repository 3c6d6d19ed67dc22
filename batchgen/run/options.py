"""What one execution may ask for beyond the job file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The flags of `batchgen run`; the defaults continue whatever is unfinished."""

    limit: int | None = None
    """Only the first so many input rows, into `<output.path>-limit-N`."""
    retry_failed: str | None = None
    """`retryable` or `all`: redo rows that failed."""
    where: str | None = None
    """A pandas query over the output rows: redo those that it selects."""
    deadline: str | None = None
    """A time of day (`06:00`) or a duration (`8h`) after which the run stops in good order."""
    fresh: bool = False
    """Discard what an earlier run of this directory has left, and start over."""
    accept_change: tuple[str, ...] = ()
    """Changed keys (or `inputs`) under which finished rows may be kept all the same."""
