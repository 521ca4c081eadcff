"""`import sphere_replay` needs torch and nothing else."""

import subprocess
import sys

HEAVY = (
    *("matplotlib", "rich", "datasets", "sklearn"),
    *("safetensors", "scipy", "pandas", "PIL", "transformers"),
)


def test_importing_the_package_loads_nothing_but_torch() -> None:
    script = (
        "import sys, torch; before = set(sys.modules); import sphere_replay;"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "sphere_replay" in loaded
    assert not set(loaded) & set(HEAVY)
    third_party = [
        name for name in loaded if name not in sys.stdlib_module_names and name[0] != "_"
    ]
    assert set(third_party) <= {"sphere_replay", "torch"}


def test_trees_need_safetensors_only_where_bytes_are_made() -> None:
    script = (
        "import sys; sys.modules['safetensors'] = None; sys.modules['safetensors.torch'] = None\n"
        "import torch\n"
        "from sphere_replay.runs.checkpoint import save\n"
        "from sphere_replay.storage.trees import flatten, to_bytes, unflatten\n"
        "print(unflatten(*flatten({'x': torch.ones(1), 'n': 3})))\n"
        "to_bytes({})"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.stdout == "{'x': tensor([1.]), 'n': 3}\n"
    last = ended.stderr.splitlines()[-1]
    assert "safetensors.torch is not installed" in last
    assert "pip install 'sphere-replay[" in last
