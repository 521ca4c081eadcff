"""How a worker is started under each isolation, and what of the machine it sees."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .inside import kernel, landlock

ISOLATIONS = ("bubblewrap", "landlock")
"""From the best to the least; `none` exists too, for those who ask for it."""

_INSIDE = Path(__file__).parent / "inside"
_PACKAGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "py", "pygments")
_SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/lib", "/lib64", "/etc/ld.so.cache")
_PLAIN_PYTHON = ("-I", "-S", "-B", "-X", "utf8", "-c")
"""No site-packages, no user folder, no environment, no byte code: the same Python everywhere."""
_START = "import sys; sys.path += {paths!r}; from inside.main import main; main()"


def missing(isolation: str) -> str | None:
    """Why an isolation cannot even be tried here; None if it can."""
    if sys.platform != "linux":
        return f"it needs Linux, this is {sys.platform}"
    if kernel.MACHINE not in kernel.SUPPORTED:
        return f"it knows {' and '.join(kernel.SUPPORTED)}, this machine is {kernel.MACHINE}"
    if isolation == "bubblewrap" and shutil.which("bwrap") is None:
        return "bwrap is not installed (Debian, Ubuntu, Fedora: package bubblewrap)"
    if isolation == "landlock" and landlock.version() == 0:
        return "this kernel does not offer landlock"
    return None


def starts(isolation: str) -> bool:
    """Whether Python starts where programs would run; needs nothing but Python."""
    words = [_executable(), "-I", "-S", "-c", "pass"]
    if isolation == "bubblewrap":
        words = [*_bubblewrap(_existing(_python_folders())), *words]
    return subprocess.run(words, env={}, capture_output=True).returncode == 0


def command(isolation: str) -> list[str]:
    """The command line of a worker's server; it wants an empty environment."""
    packages = _package_folders()
    readable = _existing([*_python_folders(), *map(str, _package_files()), str(_INSIDE)])
    settings = {"isolation": isolation, "packages": packages, "readable": readable}
    start = _START.format(paths=[str(_INSIDE.parent), *packages])
    python = [_executable(), *_PLAIN_PYTHON, start, json.dumps(settings)]
    return [*_bubblewrap(readable), *python] if isolation == "bubblewrap" else python


def pytest_command(isolation: str, folder: Path) -> list[str]:
    """A plain pytest on a folder, started from nothing under the same mounts as a worker.

    What warm workers are measured against; without landlock, which nothing but a worker applies.
    """
    packages = [*_package_folders(), str(folder)]
    start = f"import sys; sys.path += {packages!r}; import pytest; sys.exit(pytest.main())"
    arguments = ("-q", "--tb=no", "--capture=no", "-p", "no:cacheprovider", "-c", "/dev/null")
    python = [_executable(), *_PLAIN_PYTHON, start, *arguments]
    python += ["--import-mode=importlib", f"--rootdir={folder}", str(folder)]
    if isolation != "bubblewrap":
        return python
    readable = _existing([*_python_folders(), *map(str, _package_files()), str(folder)])
    return [*_bubblewrap(readable), *python]


def _bubblewrap(readable: list[str]) -> list[str]:
    """No network, no other process, read-only mounts of Python alone, and no way to write."""
    words = [
        shutil.which("bwrap") or "bwrap",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
    ]
    words += ["--unshare-cgroup-try", "--clearenv", "--new-session", "--cap-drop", "ALL"]
    if os.getuid() == 0:
        # Without a namespace of users root can leave for another uid, program by program, and
        # has to be told which sockets a program has.
        for capability in ("SETUID", "SETGID", "KILL", "SYS_PTRACE", "DAC_READ_SEARCH"):
            words += ["--cap-add", f"CAP_{capability}"]
    else:
        words += ["--unshare-user"]
    parents = {parent for path in readable for parent in Path(path).parents}
    for parent in sorted(parents - {Path("/")}):
        # A home that only its owner may enter stays closed otherwise, even with Python in it.
        words += ["--perms", "0755", "--dir", str(parent)]
    for path in sorted(readable):
        words += ["--ro-bind", path, path]
    words += ["--proc", "/proc", "--dev", "/dev", "--perms", "0755", "--dir", "/tmp"]
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--"]


def _existing(paths: list[str]) -> list[str]:
    return [path for path in dict.fromkeys(paths) if os.path.exists(path)]


def _executable() -> str:
    """The interpreter itself, not the link to it in a virtual environment."""
    base: str = getattr(sys, "_base_executable", sys.executable)
    return os.path.realpath(base)


def _python_folders() -> list[str]:
    """The standard library, what it is linked to, and the interpreter."""
    own = [_executable(), os.path.dirname(os.__file__)]
    library = Path(sys.base_prefix) / "lib"
    own += [str(path) for path in library.glob("libpython*.so*")]
    return [*_SYSTEM, *own]


def _package_files() -> list[Path]:
    """Where pytest lives, and what it needs."""
    files = []
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            if name in ("pytest", "_pytest", "pluggy"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            continue
        origin = Path(spec.origin)
        files.append(origin.parent if origin.name == "__init__.py" else origin)
    return files


def _package_folders() -> list[str]:
    return list(dict.fromkeys(str(path.parent) for path in _package_files()))
