"""A run is a folder: what it is, what it ran on, what happened, what came out."""

import hashlib
import os
import platform
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from sphere_replay.codebase import Code, this_code
from sphere_replay.errors import UserError
from sphere_replay.plugging import loaded
from sphere_replay.runs.intact import blaming, check_results
from sphere_replay.storage.checksums import EditedError, edited_files, write_checksums
from sphere_replay.storage.files import (
    canonical_json,
    leaves,
    plain,
    read_json,
    write_atomically,
)


class ConfigMismatchError(UserError, ValueError):
    """The folder belongs to a run with another configuration."""


class DataMismatchError(UserError, ValueError):
    """The run began on other data than it finds now."""


class FolderBusyError(UserError, RuntimeError):
    """Another process is running in the folder."""


def identity(config: Mapping[str, object]) -> str:
    """SHA-256 of the canonical configuration: two runs are the same run if theirs are equal.

    The configuration is the resolved one and says what is computed, not where: paths of data and
    output do not belong in it.
    """
    return hashlib.sha256(canonical_json(config, "config").encode()).hexdigest()


def describe_environment(
    seed: int, data: Mapping[str, str], digests: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The manifest of a run: versions, code, platform, seed, a checksum for each part of the data.

    Args:
        seed: Of the run.
        data: The checksums.
        digests: Of the parts that it takes from plug-ins, which are in its identity as well.
    """
    code = this_code()
    sources = {plugin.digest: plugin.source for plugin in loaded()}
    plugins = {
        part: {"digest": digest, "source": sources.get(digest)}
        for part, digest in (digests or {}).items()
    }
    return {
        **({"plugins": plugins} if plugins else {}),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "sphere_replay": code.version,
        "commit": code.commit,
        "code": code.digest,
        "platform": platform.platform(),
        "seed": seed,
        "data": dict(data),
    }


class RunFolder:
    """The files of a run. Reading needs no lock; whoever writes has to `claim` the folder.

    `config.json` (its SHA-256 is the run's identity), `manifest.json`, `log.jsonl`,
    `results.json`, `checkpoint.safetensors` and `checkpoint.json`. Of a finished run,
    `checksums.json` vouches for the first four.

    Args:
        path: The folder.
        accept_edited: Read results whose files do not fit their checksums, too.
    """

    def __init__(self, path: str | Path, *, accept_edited: bool = False) -> None:
        self.path = Path(path)
        self._accept_edited = accept_edited

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        return read_json(self.path / "config.json")

    @property
    def identity(self) -> str:
        """SHA-256 of the configuration."""
        return identity(self.config)

    @property
    def manifest(self) -> dict[str, Any]:
        """What the run began on."""
        return read_json(self.path / "manifest.json")

    @property
    def made_by(self) -> Code | None:
        """The state of this package that the run began with; None if nobody has written it down."""
        if not (self.path / "manifest.json").is_file():
            return None
        with blaming(self.path / "manifest.json"):
            return Code.of_manifest(self.manifest)

    @property
    def results(self) -> dict[str, Any]:
        """What came out; there once the run has finished, and refused if it cannot be true."""
        if not self._accept_edited and (edited := self.edited):
            names = " and ".join(edited)
            raise EditedError(
                f"{self.path}: {names} changed after the run had finished, the checksums no longer "
                "fit: restore it from a copy, or delete the folder and run again (`sphere table "
                "--accept-edited` shows the run as it is, marked)"
            )
        results = read_json(self.path / "results.json")
        check_results(results, self.path / "results.json")
        return results

    @property
    def edited(self) -> list[str]:
        """Files of a finished run that are not what it wrote; [] for runs without checksums."""
        return edited_files(self.path)

    @property
    def log_path(self) -> Path:
        """Where the log is, see `RunLog`."""
        return self.path / "log.jsonl"

    @property
    def finished(self) -> bool:
        """Whether the results are there; they are written last, and whole."""
        return (self.path / "results.json").is_file()

    @contextmanager
    def claim(self, config: Mapping[str, object]) -> Iterator["RunFolder"]:
        """Hold the folder for this process and this configuration while the block runs.

        A new folder gets the configuration. One that has another is an error which shows the
        difference, and so is one in which another process runs; a process that was killed holds
        nothing.
        """
        canonical_json(config, "config")  # refuse what cannot be stored before making a folder
        self.path.mkdir(parents=True, exist_ok=True)
        with _locked(self.path / "lock"):
            self._settle_config(config)
            yield self

    def write_manifest(self, manifest: Mapping[str, object]) -> list[str]:
        """Store the manifest, or return how it differs from that of the run's first start.

        Other versions or another machine are for the caller to report: the run goes on, but may
        not end in the same bits. Other data are an error.
        """
        path = self.path / "manifest.json"
        if not path.exists():
            write_atomically(path, canonical_json(manifest, "manifest").encode())
            return []
        changes = differences(self.manifest, manifest)
        of_data = [line for line in changes if line.startswith(("data.", "data:"))]
        if of_data:
            raise DataMismatchError(
                f"the run in {self.path} began on other data:\n  " + "\n  ".join(of_data) + "\n"
                "Give it the old data, or start the run in another folder."
            )
        return changes

    def write_results(self, results: Mapping[str, object]) -> None:
        """Finish the run. Deterministic content only: times belong in the log."""
        named = {**results, "identity": self.identity}
        content = canonical_json(named, "results").encode()
        others = ("config.json", "manifest.json", self.log_path.name)
        there = {name: self.path / name for name in others if (self.path / name).is_file()}
        # Before the results, whose presence says that the run has finished.
        write_checksums(
            self.path,
            {name: path.read_bytes() for name, path in there.items()} | {"results.json": content},
        )
        write_atomically(self.path / "results.json", content)

    def _settle_config(self, config: Mapping[str, object]) -> None:
        path = self.path / "config.json"
        if not path.exists():
            write_atomically(path, canonical_json(config, "config").encode())
        elif self.identity != identity(config):
            lines = "\n  ".join(differences(self.config, config))
            raise ConfigMismatchError(
                f"{self.path} holds a run with another configuration (old -> new):\n  {lines}\n"
                "Choose another folder, or delete this one."
            )


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Lines "key: old -> new" for all nested keys whose values differ, in alphabetical order."""
    # As text, because 1, 1.0 and true are equal in Python but not in a file.
    before, after = (
        {path: repr(value) for path, value in leaves(plain(tree, name), ".")}
        for tree, name in ((old, "old"), (new, "new"))
    )
    absent = "(absent)"
    return [
        f"{key}: {before.get(key, absent)} -> {after.get(key, absent)}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key, absent) != after.get(key, absent)
    ]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The system drops the lock with the process, however it ends; a soft lock would stay behind.
    lock = FileLock(path, fallback_to_soft=False)
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        holder = path.read_text(errors="replace").strip()
        raise FolderBusyError(
            f"{path.parent} is in use by {holder or 'another process'}: wait for it, or "
            "choose another folder"
        ) from None
    with held:
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
        yield
