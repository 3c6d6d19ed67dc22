"""One part as it is to be published: fixed at a moment, and then carried out by any thread.

The writer keeps journaling while a part is written. What it needs for that must not change under
the thread that publishes, so everything is in here, taken when the journal was synced.
"""

from dataclasses import dataclass

from batchgen.output.columns import PartColumns
from batchgen.output.crashpoints import CrashPoints
from batchgen.output.disk import disk_error
from batchgen.output.journal import FrameRef, RowsFrame, read_frames
from batchgen.output.layout import RunLayout
from batchgen.output.parts import KeptColumns, NewRecords, PartInfo, PartKey, publish_part
from batchgen.records import PartExtent


@dataclass(frozen=True, slots=True)
class Publication:
    """One part as it is to be published, fixed at a moment at which the journal was synced.

    Records that are journaled later are not in it; they stay in the journal for the next one.
    """

    layout: RunLayout
    columns: PartColumns
    kept: KeptColumns
    fingerprint: str
    crash: CrashPoints
    key: PartKey
    old: PartInfo | None
    source_start: int | None
    seq: int
    extent: PartExtent | None
    refs: tuple[FrameRef, ...]

    def carry_out(self) -> PartInfo:
        """Write the part; its new footer. Touches nothing that the writer's own thread uses."""
        try:
            frames = read_frames(self.layout.journal, self.refs)
        except OSError as exc:
            raise disk_error(exc, self.layout.journal) from exc
        new = NewRecords(
            key=self.key,
            source_start=self.source_start,
            seq=self.seq,
            frames=[frame for frame in frames if isinstance(frame, RowsFrame)],
            extent=self.extent,
        )
        return publish_part(
            self.layout,
            self.columns,
            self.kept,
            self.old,
            new,
            fingerprint=self.fingerprint,
            crash=self.crash,
        )
