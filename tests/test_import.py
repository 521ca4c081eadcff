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
