"""Every path of a run directory, and the names of parts.

    runs/x/outputs/…parquet    one file per part
    runs/x/batches/…parquet    one row per batch
    runs/x/manifest.json  report.html  _SUCCESS
    runs/x/.batchgen/          journal/, lock, progress.json, log, schema.arrow

A part is named after its shard and its first row, so a new shard changes no old name. The shard's
name is escaped so that sorting the file names sorts the shards (by code point) and then the rows:
each character that a file name should not hold becomes a text that sorts where the character did,
and the `+` before the row sorts before all of them. `-` to `z` without punctuation stay as they
are, so `docs/a-1.jsonl` is `docs.~a-1.jsonl+000000000000.parquet`.

At its start a name keeps neither `.` nor `_` (dataset readers skip such files) nor `-`. `=` never
occurs: in the name of a folder it would be read as a partition key.
"""

from dataclasses import dataclass
from pathlib import Path

from batchgen.errors import DataError

_PLAIN = frozenset(b"-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
_NAME_BYTES = 200
"""File systems take 255 bytes; `+`, the row and `.parquet` need 21 of them."""


NO_FOLDER = "is a file; give the directory that is output.path of a job"


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The paths of one run directory. Creates nothing."""

    path: Path

    @classmethod
    def at(cls, path: str | Path) -> "RunLayout":
        """That of a directory to be read. Raises DataError where it is a file."""
        if Path(path).is_file():
            raise DataError(f"{path}: {NO_FOLDER}")
        return cls(Path(path))

    @property
    def outputs(self) -> Path:
        """Folder of the parts."""
        return self.path / "outputs"

    @property
    def batches(self) -> Path:
        """Folder of the batch records."""
        return self.path / "batches"

    @property
    def manifest(self) -> Path:
        """What the run was, and its totals."""
        return self.path / "manifest.json"

    @property
    def success(self) -> Path:
        """Marks that every input row has its output row."""
        return self.path / "_SUCCESS"

    @property
    def report(self) -> Path:
        """The report for people."""
        return self.path / "report.html"

    @property
    def hidden(self) -> Path:
        """What only batchgen reads; dataset readers skip it."""
        return self.path / ".batchgen"

    @property
    def journal(self) -> Path:
        """Folder of the journal's segments."""
        return self.hidden / "journal"

    @property
    def lock(self) -> Path:
        """The lock file, with its holder."""
        return self.hidden / "lock"

    @property
    def progress(self) -> Path:
        """Progress of the current or last run."""
        return self.hidden / "progress.json"

    @property
    def log(self) -> Path:
        """Log file."""
        return self.hidden / "log"

    @property
    def schema(self) -> Path:
        """Arrow schema of the parts, fixed by the first run."""
        return self.hidden / "schema.arrow"

    def part(self, shard: str, start_row: int) -> Path:
        """Where the part of `shard` that begins at `start_row` lives."""
        return self.outputs / part_name(shard, start_row)


def part_name(shard: str, start_row: int) -> str:
    """File name of a part, relative to `outputs/`.

    >>> part_name("docs/a b.jsonl", 20000)
    'docs.~a,20b.jsonl+000000020000.parquet'

    A very long name continues in folders that end in `~`, which keeps the order too.
    """
    name = _escape(shard)
    pieces = [name[i : i + _NAME_BYTES] for i in range(0, len(name), _NAME_BYTES)]
    return f"{'~/~'.join(pieces)}+{start_row:012d}.parquet"


def _escape(shard: str) -> str:
    try:
        data = shard.encode()
    except UnicodeEncodeError as exc:
        raise DataError(
            f"{shard.encode('utf-8', 'backslashreplace').decode()!r}: the file's name is not valid "
            "UTF-8; rename the file"
        ) from exc
    if not data:
        raise DataError("an input file without a name cannot be a shard")
    return _escape_first(data[0]) + "".join(_ESCAPES[byte] for byte in data[1:])


def _escape_first(byte: int) -> str:
    if byte < ord("0"):
        return f",{byte:02x}"
    if byte in (ord("_"), ord("`")):
        return f"^{byte:02x}"
    return _ESCAPES[byte]


def _escape_byte(byte: int) -> str:
    """Text that sorts, among the texts of all bytes, where the byte sorts among the bytes."""
    if byte in _PLAIN:
        return chr(byte)
    if byte < ord("-"):
        return f",{byte:02x}"
    if byte == ord("/"):
        return ".~"
    if byte < ord("A"):
        return f"@{byte:02x}"
    if byte < ord("_"):
        return f"^{byte:02x}"
    return "_~" if byte == ord("`") else f"}}{byte:02x}"


_ESCAPES = tuple(_escape_byte(byte) for byte in range(256))
