"""A plug-in whose learner halts on a node that is to be killed, and counts its steps."""

import os
import time
import uuid
from pathlib import Path

from sphere_replay.hosts import ExperienceReplay
from sphere_replay.hosts.host import Batch, Step
from sphere_replay.plugins import host

AT = 510
"""Beyond the first checkpoint, which is at 500."""


@host("halting")
class Halting(ExperienceReplay):
    """ER that goes no further than `AT` on the doomed node, nor elsewhere before it halts there.

    Steps are counted in $HALTING_FOLDER; without it this is plain ER.
    """

    steps: Path | None = None

    def observe(self, batch: Batch) -> Step:
        """Count, then learn, or halt."""
        if folder := os.environ.get("HALTING_FOLDER"):
            self._count(Path(folder), "HALTING_DOOMED" in os.environ)
        return super().observe(batch)

    def _count(self, folder: Path, doomed: bool) -> None:
        if self.steps is None:
            self.steps = folder / f"{'doomed' if doomed else 'spared'}-{uuid.uuid4().hex}"
        with open(self.steps, "ab") as file:
            file.write(b".")
            taken = file.tell()
        if taken == AT:
            halted = folder / "halted"
            if doomed:
                halted.touch()
            while doomed or not halted.exists():
                time.sleep(0.05)
