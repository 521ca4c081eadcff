"""Programs that try to get out, to get at the machine, or to pass without solving anything.

Each is bounded by itself as well (64 children, 64 MiB, a bait of ours as the victim), so that it
does no harm even where containment fails. Probes return what they got hold of: nothing is a pass.
Every other program must fail its test and end in one of the given ways.
"""

from dataclasses import dataclass, field

from .forgeries import FORGERIES, MODULES, PATCHES
from .limits import MEBIBYTE

PROBE = """
import solution

def test_nothing_was_reached():
    assert solution.probe() == []
"""
SQUARE = """
import pytest
from solution import square

def test_square():
    assert square(3) == 9

def test_type():
    with pytest.raises(TypeError):
        square("three")
"""
_WRONG = "\ndef square(x):\n    return 0\n"


@dataclass(frozen=True)
class Hostile:
    """A program and how it has to end."""

    name: str
    program: str | bytes
    endings: tuple[str, ...] = ()
    """Ways it may end; () for probes, which have to pass."""
    limits: dict[str, float] = field(default_factory=dict)
    """Limits that it is meant to break, made small."""

    @property
    def tests(self) -> str:
        """The test file."""
        return SQUARE if self.endings else PROBE


def _attempts(*attempts: str, setup: str = "") -> str:
    """A probe that tries each of some statements and lists those that worked."""
    return (
        f"import os, socket, subprocess, sys, time\n{setup}\nATTEMPTS = {list(attempts)!r}\n\n"
        "def probe():\n"
        "    reached = []\n"
        "    for attempt in ATTEMPTS:\n"
        "        try:\n"
        "            exec(attempt, globals())\n"
        "            reached.append(attempt)\n"
        "        except Exception as error:\n"
        "            print(attempt, repr(error))\n"
        "    return reached\n"
    )


def battery(bait: dict[str, object]) -> list[Hostile]:
    """All hostile programs.

    Args:
        bait: `secret` (a file on the host that everyone may read), `folder` (one that everyone may
            write to), `pid` (a process of ours), `port` (a TCP and UDP port on which somebody
            listens), `socket` (a local socket's path) and `abstract` (a local socket's name).
    """
    secret, folder, pid = bait["secret"], bait["folder"], bait["pid"]
    port, local, abstract = bait["port"], bait["socket"], bait["abstract"]
    call = (
        "subprocess.run([sys.executable, '-I', '-S', '-c', 'import ctypes; "
        "raise SystemExit(ctypes.CDLL(None).{call} != 0)'], check=True, timeout=3)"
    )
    cases = [
        Hostile("endless loop", "while True:\n    pass\n", ("timeout",), {"wall": 0.5}),
        Hostile("sleep", "import time\ntime.sleep(60)\n", ("timeout",), {"wall": 0.5}),
        Hostile(
            "ignores SIGTERM",
            "import signal, time\n"
            "for number in range(1, 65):\n"
            "    try:\n        signal.signal(number, signal.SIG_IGN)\n"
            "    except (OSError, ValueError):\n        pass\n"
            "time.sleep(60)\n",
            ("timeout",),
            {"wall": 0.5},
        ),
        Hostile(
            "processor time",
            "import time\nwhile time.process_time() < 5:\n    pass\n" + _WRONG,
            ("uncollected",),
            {"cpu": 1, "wall": 8},
        ),
        Hostile(
            "memory balloon",
            "held = [bytearray(16 << 20) for _ in range(64)]\n" + _WRONG,
            ("uncollected", "memory"),
            {"memory": 128 * MEBIBYTE},
        ),
        Hostile(
            "memory of many processes",
            "import os, time\n"
            "for _ in range(8):\n"
            "    if os.fork() == 0:\n"
            "        held = bytearray(64 << 20)\n"
            "        time.sleep(10)\n"
            "        os._exit(0)\n"
            "time.sleep(10)\n",
            ("memory",),
            {"memory": 128 * MEBIBYTE, "wall": 8},
        ),
        Hostile(
            "fork tree",
            "import os, time\n"
            "for _ in range(64):\n"
            "    if os.fork() == 0:\n        time.sleep(10)\n        os._exit(0)\n"
            "def square(x):\n    if x == 3:\n        return 9\n    raise TypeError\n",
            ("uncollected",),
            {"processes": 16},
        ),
        Hostile(
            "thousands of threads",
            "import threading\n"
            "wait = threading.Event().wait\n"
            "for _ in range(4000):\n"
            "    threading.Thread(target=wait, args=(10,), daemon=True).start()\n"
            "def square(x):\n    if x == 3:\n        return 9\n    raise TypeError\n",
            ("uncollected",),
            {"processes": 32},
        ),
        Hostile(
            "disk fill",
            "for number in range(64):\n"
            "    open(f'{number}.bin', 'wb').write(bytes(1 << 20))\n"
            "def square(x):\n    if x == 3:\n        return 9\n    raise TypeError\n",
            ("uncollected", "scratch"),
            {"scratch": 8 * MEBIBYTE},
        ),
        Hostile(
            "huge file",
            "open('huge.bin', 'wb').write(bytes(64 << 20))\n",
            ("uncollected",),
            {"file_size": 4 * MEBIBYTE},
        ),
        Hostile(
            "endless output",
            "for _ in range(1024):\n    print('x' * 65536)\n" + _WRONG,
            ("output",),
        ),
        Hostile(
            "reads files of the host",
            _attempts(
                f"open({secret!r}).read()",
                f"os.listdir({folder!r})",
                "open('/etc/passwd').read()",
                "open('/etc/shadow').read()",
                "open('/etc/hostname').read()",
                "os.listdir('/var/log')",
                "open('/proc/1/environ', 'rb').read()",
                "open('/proc/self/mem', 'rb')",
                f"open('/proc/{pid}/cmdline', 'rb').read()",
            ),
        ),
        Hostile(
            "writes outside its folder",
            _attempts(
                f"open(os.path.join({folder!r}, 'written'), 'w')",
                f"open({secret!r}, 'a')",
                f"os.truncate({secret!r}, 0)",
                f"os.unlink({secret!r})",
                f"os.rename({secret!r}, {str(secret) + '.moved'!r})",
                f"os.chmod({secret!r}, 0o777)",
                f"os.utime({secret!r}, (0, 0))",
                "open('/usr/lib/written', 'w')",
                "open('/dev/shm/written', 'w')",
                "open(os.path.join(os.path.dirname(os.__file__), 'written.py'), 'w')",
            ),
        ),
        Hostile(
            "symbolic links and paths",
            _attempts(
                "open('link').read()",
                "open('link', 'a')",
                "open('up/written', 'w')",
                f"open('../../../../../../../..{secret}').read()",
                f"os.link({secret!r}, 'hard'); open('hard').read()",
                setup=f"os.symlink({secret!r}, 'link'); os.symlink({folder!r}, 'up')",
            ),
        ),
        Hostile(
            "network and local sockets",
            _attempts(
                f"socket.create_connection(('127.0.0.1', {port}), 1)",
                "socket.create_connection(('1.1.1.1', 53), 1)",
                f"socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
                f"socket.socket(socket.AF_UNIX).connect({local!r})",
                f"socket.socket(socket.AF_UNIX).connect({abstract!r})",
                "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
                "socket.socket().bind(('127.0.0.1', 0))",
            ),
        ),
        Hostile(
            "kills or traces others",
            _attempts(
                f"os.kill({pid}, 15)",
                "os.getppid() > 1 and os.kill(os.getppid(), 0) or 1 / os.getppid()",
                call.format(call=f"ptrace(16, {pid}, 0, 0)"),
                call.format(call="unshare(0x10000000)"),
                f"os.sched_setaffinity({pid}, {{0}})",
                "__import__('resource').prlimit(os.getppid() or 1, 7, (8, 8))",
                "os.setuid(0)",
            ),
        ),
        Hostile(
            "environment and descriptors",
            "import os\n"
            "def probe():\n"
            "    found = sorted(set(os.environ) - {'HOME', 'TMPDIR', 'PYTEST_CURRENT_TEST'})\n"
            "    for descriptor in range(4, 1024):\n"
            "        try:\n            os.fstat(descriptor)\n            found.append(descriptor)\n"
            "        except OSError:\n            pass\n"
            "    try:\n        found.append(os.read(3, 1))\n"
            "    except OSError:\n        pass\n"
            "    return found\n",
        ),
        Hostile(
            "looks through the interpreter's memory",
            _attempts(
                "import gc; gc.get_objects()",
                "import gc; gc.get_referrers(os)",
                "import ctypes; ctypes.string_at(id(os), 8)",
                "sys.settrace(lambda *a: None)",
                "sys._current_frames()",
            ),
        ),
        Hostile(
            "packages of the host",
            _attempts("import torch", "import numpy", "import sphere_replay"),
        ),
        Hostile("exit code 0 on import", "import os\nos._exit(0)\n", ("uncollected",)),
        Hostile(
            "exit code 0 in a test",
            "import os\ndef square(x):\n    os._exit(0)\n",
            ("stopped",),
        ),
        Hostile(
            "SystemExit",
            "def square(x):\n    raise SystemExit(0)\n",
            ("stopped", "finished"),
        ),
        Hostile(
            "crash",
            "import sys\nsys.setrecursionlimit(10**9)\n"
            "class Deep:\n    def __repr__(self):\n        return repr(self)\n"
            "def square(x):\n    return repr(Deep())\n",
            ("stopped", "finished"),
        ),
        Hostile(
            "daemon",
            "import os, time\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    if os.fork() == 0:\n        time.sleep(20)\n"
            "    os._exit(0)\n" + _WRONG,
            ("finished",),
        ),
        Hostile(
            "goes on twice",
            "import os\nos.fork()\ndef square(x):\n    return 0\n",
            ("tampered", "finished"),  # the second may be stopped before it is heard
        ),
        Hostile(
            "folders that are hard to remove",
            "import os\n"
            "top = os.getcwd()\n"
            "for depth in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\n"
            "os.chdir(top)\nos.mkdir('closed', 0)\n" + _WRONG,
            ("finished",),
        ),
        Hostile("binary garbage", bytes(range(256)) * 64, ("uncollected",)),
        Hostile(
            "not UTF-8", b"name = '\xff'\ndef square(x):\n    return x * x\n", ("uncollected",)
        ),
        Hostile(
            "10 MB of source",
            b"x = [" + b"1, " * 3_500_000 + b"]\n",
            ("uncollected", "timeout", "memory", "finished", "stopped"),
            {"wall": 1.0},
        ),
    ]
    tampering = ("tampered", "uncollected", "finished")
    for kind, programs in (("patched", PATCHES), ("modules", MODULES), ("forged", FORGERIES)):
        for name, program in programs.items():
            source = program if "def square" in program else program + _WRONG
            cases.append(Hostile(f"{kind}: {name}", source, tampering))
    return cases
