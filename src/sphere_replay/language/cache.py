"""Models made on the spot, kept beside the runs: built once, whole or not at all."""

from collections.abc import Callable, Mapping
from pathlib import Path

from sphere_replay.extras import require
from sphere_replay.storage.files import entry_name, replacing


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
    target = home / entry_name(name, origin)
    home.mkdir(parents=True, exist_ok=True)
    # The system drops the lock with the process, however it ends; a soft lock would stay behind.
    lock = home / f"{target.name}.lock"
    with require("filelock", "instruct").FileLock(lock, fallback_to_soft=False):
        if not target.is_dir():
            with replacing(target) as temporary:
                temporary.mkdir()
                build(temporary)
    return target
