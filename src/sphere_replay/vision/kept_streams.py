"""A vision stream saved as data, so that anyone can see or reuse exactly what a run was shown."""

from pathlib import Path

from sphere_replay.storage.files import write_atomically
from sphere_replay.storage.trees import to_bytes
from sphere_replay.vision.stream import ClassStream


def keep_stream(stream: ClassStream, out: Path) -> Path:
    """Save labels and order once for all runs that share them; named by their digest.

    The digest is in each run's manifest. `ClassStream.from_tensors` reads the file back.
    """
    path = out / "streams" / f"{stream.digest}.safetensors"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_bytes(stream.to_tensors()))
    return path
