"""Verdicts are found again by content, and only those that would come out the same."""

from pathlib import Path

import pytest

from sphere_replay.sandbox import Limits, Sandbox, Verdict
from sphere_replay.sandbox.cache import VerdictCache, content_key

TESTS = "from solution import f\ndef test_f():\n    assert f() == 1\n"
KEY = "ab" + "0" * 62


def test_a_verdict_is_computed_once(tmp_path: Path) -> None:
    with Sandbox(cache=tmp_path) as sandbox:
        first = sandbox.run("def f():\n    return 1\n", TESTS)
        again = sandbox.run("def f():\n    return 1\n", TESTS)
        other = sandbox.run("def f():\n    return 2\n", TESTS)
    assert (first.cached, again.cached, other.cached) == (False, True, False)
    assert again.nodes == first.nodes == {"test_f": "passed"}
    assert other.nodes == {"test_f": "failed"}
    with Sandbox(cache=tmp_path) as sandbox:
        assert sandbox.run("def f():\n    return 1\n", TESTS).cached
    assert not list(tmp_path.rglob("*.tmp"))


def test_everything_that_decides_a_verdict_is_in_its_key() -> None:
    key = content_key(b"p", "t", None, Limits(), "s")
    others = [
        content_key(b"q", "t", None, Limits(), "s"),
        content_key(b"p", "u", None, Limits(), "s"),
        content_key(b"p", "t", ["n"], Limits(), "s"),
        content_key(b"p", "t", None, Limits(wall=1.0), "s"),
        content_key(b"p", "t", None, Limits(), "r"),
    ]
    assert len({key, *others}) == 6
    assert key == content_key(b"p", "t", None, Limits(), "s")
    assert content_key(b"p", "t", ["a", "b"], Limits(), "s") == content_key(
        b"p", "t", ["b", "a"], Limits(), "s"
    )


@pytest.mark.parametrize("ending", ["timeout", "memory", "broken"])
def test_endings_that_depend_on_the_moment_are_not_kept(ending: str, tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path)
    cache.put(KEY, Verdict({"a": "error"}, ending))
    assert cache.get(KEY) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"nodes": {}}', b"\xff", b'{"x": 1}'])
def test_a_damaged_file_is_a_miss_and_is_replaced(content: bytes, tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path)
    cache.put(KEY, Verdict({"a": "passed"}, "finished"))
    (path,) = tmp_path.rglob("*.json")
    path.write_bytes(content)
    assert cache.get(KEY) is None
    cache.put(KEY, Verdict({"a": "failed"}, "finished"))
    stored = cache.get(KEY)
    assert stored is not None
    assert (stored.nodes, stored.cached) == ({"a": "failed"}, True)
