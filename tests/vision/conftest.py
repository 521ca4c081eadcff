"""No test of this folder reaches the network or the caches of the person who runs it."""

import os
from pathlib import Path

import pytest

# Read once, when the hub client is imported.
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPHERE_DATA", raising=False)
    monkeypatch.setenv("SPHERE_CACHE", str(tmp_path / "cache"))
