"""What an output directory holds, read from the footers of its files: quick however many rows."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from batchgen.errors import DataError
from batchgen.output.batches import batch_files, read_batch_file_info
from batchgen.output.counts import Counts
from batchgen.output.layout import RunLayout
from batchgen.output.parts import PartInfo, PartKey, read_part_info


@dataclass(slots=True)
class DirectoryState:
    """Parts by (shard, start row) in input order, and the ids and numbers that go on from here."""

    layout: RunLayout
    prefix: str = ""
    parts: dict[PartKey, PartInfo] = field(default_factory=dict)
    next_batch_id: int = 0
    last_seq: int = 0
    """Highest sequence number in any file."""

    @classmethod
    def scan(cls, layout: RunLayout, prefix: str = "") -> "DirectoryState":
        """Read the footers of all files. Raises DataError naming all bad parts."""
        state = cls(layout, prefix)
        problems: list[str] = []
        for path in sorted(layout.outputs.rglob("[!.]*.parquet")):
            try:
                state.note(_info_of(layout, path))
            except DataError as exc:
                problems += exc.problems
        if problems:
            raise DataError(problems)
        for path in batch_files(layout):
            batches = read_batch_file_info(path)
            state.last_seq = max(state.last_seq, batches.seq)
            state.next_batch_id = max(state.next_batch_id, batches.last_batch_id + 1)
        return state

    def note(self, info: PartInfo) -> None:
        """A part was published."""
        self.parts[info.key] = info
        self.last_seq = max(self.last_seq, info.seq)
        self.next_batch_id = max(self.next_batch_id, info.counts.last_batch_id + 1)

    def reopen(self, shard: str, start_row: int) -> None:
        """A part's end is not known any more; its file is rewritten when it is published."""
        key = PartKey(shard, start_row)
        self.parts[key] = replace(self.parts[key], complete=False, extent=None)

    def done_rows(self, shard: str, start_row: int) -> np.ndarray:
        """Rows (numbers in the shard, ascending) that the part's file holds; failed ones too."""
        info = self.parts.get(PartKey(shard, start_row))
        if info is None:
            return np.empty(0, dtype=np.int64)
        if info.complete:
            return np.arange(start_row, start_row + info.num_rows, dtype=np.int64)
        with pq.ParquetFile(self.layout.part(shard, start_row)) as file:
            rows: np.ndarray = file.read(columns=[f"{self.prefix}row"]).column(0).to_numpy()
        return rows

    def shard_parts(self, shard: str) -> list[PartInfo]:
        """Parts of a shard, in row order."""
        return sorted(
            (info for info in list(self.parts.values()) if info.shard == shard),
            key=lambda info: info.start_row,
        )

    def totals(self) -> Counts:
        """Counts over all parts."""
        return sum((info.counts for info in list(self.parts.values())), Counts())


def _info_of(layout: RunLayout, path: Path) -> PartInfo:
    info = read_part_info(path)
    right_path = layout.part(*info.key)
    if path != right_path:
        raise DataError(
            f"{path}: is the part of {info.shard} from row {info.start_row}, whose name is "
            f"{right_path.name}; rename it back, or move the copy away"
        )
    return info
