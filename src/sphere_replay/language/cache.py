"""Models made on the spot, kept beside the runs: built once, whole or not at all."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from filelock import FileLock


def cached_folder(
    home: Path, name: str, origin: Mapping[str, object], build: Callable[[Path], None]
) -> Path:
    """The folder of an entry, built unless it is there already.

    Two processes that start at once build it once: the second waits for the first. A crash leaves
    no half-built entry, because a folder takes its name when it is complete.

    Args:
        home: Where entries live.
        name: Readable first part of the entry's name.
        origin: Everything the content depends on; its digest is the rest of the name.
        build: Fills the empty folder it is given.
    """
    digest = hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()[:16]
    target = home / f"{name}-{digest}"
    home.mkdir(parents=True, exist_ok=True)
    # The system drops the lock with the process, however it ends; a soft lock would stay behind.
    with FileLock(home / f"{target.name}.lock", fallback_to_soft=False):
        if not target.is_dir():
            temporary = Path(tempfile.mkdtemp(dir=home, prefix=f"{target.name}.", suffix=".tmp"))
            try:
                build(temporary)
                os.replace(temporary, target)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return target
