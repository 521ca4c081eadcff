"""Where a worker starts: first the nursery is forked, before pytest or any test is in memory."""

import json
import sys

from . import confine
from .nursery import Nursery
from .scratch import Scratch


def main() -> None:
    """Start with the confinement that the command line gives, as JSON."""
    settings = json.loads(sys.argv[1])
    confinement = confine.Confinement(
        settings["isolation"], tuple(settings["readable"]), tuple(settings["packages"])
    )
    scratch = Scratch(in_memory=confinement.isolation == "bubblewrap")
    nursery = Nursery(confinement, scratch.folder("program"))
    from .server import serve  # imports pytest

    serve(confinement, scratch, nursery)
