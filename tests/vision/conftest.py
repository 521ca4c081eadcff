"""No test of this folder reaches the data or the caches of the person who runs it."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPHERE_DATA", raising=False)
    monkeypatch.setenv("SPHERE_CACHE", str(tmp_path / "cache"))
