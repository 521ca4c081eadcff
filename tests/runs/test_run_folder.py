"""A run's folder: identity, atomic files, locking."""

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest
import torch

from sphere_replay import __version__
from sphere_replay.runs.folder import (
    ConfigMismatchError,
    DataMismatchError,
    FolderBusyError,
    RunFolder,
    describe_environment,
    differences,
    identity,
)
from sphere_replay.storage.checksums import EditedError
from sphere_replay.storage.files import canonical_json, write_atomically

CONFIG: dict[str, object] = {
    "host": "er",
    "replay": {"alpha": 0.5, "every": 4},
    "classes": [2, 2],
    "seed": 3,
}


def test_the_hash_of_the_file_is_the_identity(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "deep" / "run")
    with folder.claim(CONFIG):
        pass
    content = (folder.path / "config.json").read_bytes()
    assert hashlib.sha256(content).hexdigest() == folder.identity == identity(CONFIG)
    assert folder.config == CONFIG


def test_identity_ignores_order_and_tuples_but_no_value() -> None:
    reordered = {**dict(reversed(CONFIG.items())), "classes": (2, 2)}
    assert identity(reordered) == identity(CONFIG)
    assert identity({**CONFIG, "seed": 4}) != identity(CONFIG)
    assert identity({**CONFIG, "seed": 3.0}) != identity(CONFIG)


def test_another_configuration_is_refused_with_the_difference(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.claim(CONFIG):
        pass
    before = (tmp_path / "config.json").read_bytes()
    new = {**CONFIG, "replay": {"alpha": 0.9, "every": 4}, "noise": 0.2}
    with pytest.raises(ConfigMismatchError) as raised, folder.claim(new):
        pytest.fail("the block must not run")
    message = str(raised.value)
    assert "noise: (absent) -> 0.2" in message
    assert "replay.alpha: 0.5 -> 0.9" in message
    assert "every" not in message
    assert (tmp_path / "config.json").read_bytes() == before


def test_differences_tell_equal_looking_values_apart() -> None:
    assert differences({"a": 1, "b": True, "c": {}}, {"a": 1.0, "b": 1}) == [
        "a: 1 -> 1.0",
        "b: True -> 1",
        "c: {} -> (absent)",
    ]
    assert differences(CONFIG, dict(reversed(CONFIG.items()))) == []


def test_what_json_cannot_hold_is_refused_before_a_folder_exists(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for value, message in (
        ({"lr": {"w": float("nan")}}, r"config\.lr\.w = nan"),
        ({"mean": [0, torch.ones(1)]}, r"config\.mean\[1\] is a Tensor"),
        ({"table": {1: 2}}, r"config\.table has the key 1"),
    ):
        with pytest.raises((TypeError, ValueError), match=message), RunFolder(path).claim(value):
            pytest.fail("the block must not run")
    assert not path.exists()


def test_two_claims_at_once_are_refused(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path), RunFolder(tmp_path)
    with (
        first.claim(CONFIG),
        pytest.raises(FolderBusyError, match=f"in use by process {os.getpid()} on"),
        second.claim(CONFIG),
    ):
        pytest.fail("the block must not run")
    with second.claim(CONFIG):
        assert second.config == CONFIG


def test_a_child_neither_keeps_nor_drops_the_folder_of_its_parent(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    until, ended = os.pipe()
    with folder.claim(CONFIG):
        ending = os.fork()
        if ending == 0:
            os._exit(0)
        os.waitpid(ending, 0)
        with pytest.raises(FolderBusyError), RunFolder(tmp_path).claim(CONFIG):
            pytest.fail("a child that ends must not release what its parent holds")
        staying = os.fork()
        if staying == 0:
            os.close(ended)
            os.read(until, 1)
            os._exit(0)
    try:
        with RunFolder(tmp_path).claim(CONFIG):
            assert folder.config == CONFIG
    finally:
        os.close(until)
        os.close(ended)
        os.waitpid(staying, 0)


def test_an_error_inside_releases_the_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(ZeroDivisionError), folder.claim(CONFIG):
        raise ZeroDivisionError
    with folder.claim(CONFIG):
        assert not folder.finished


def test_the_manifest_of_the_first_session_stays(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    manifest = describe_environment(3, {"train": "abc"})
    assert manifest["torch"] == torch.__version__
    assert manifest["sphere_replay"] == __version__
    assert folder.write_manifest(manifest) == []
    assert folder.write_manifest(manifest) == []
    changed = folder.write_manifest({**manifest, "torch": "9.9"})
    assert changed == [f"torch: {str(torch.__version__)!r} -> '9.9'"]
    with pytest.raises(DataMismatchError, match=r"data\.train: 'abc' -> 'xyz'"):
        folder.write_manifest({**manifest, "data": {"train": "xyz"}})
    assert folder.manifest == manifest


def test_results_finish_the_run_and_carry_its_identity(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.claim(CONFIG):
        assert not folder.finished
        folder.write_results({"metrics": {"class_il": 1 / 3}, "passes": 12})
    assert folder.finished
    assert folder.results["metrics"]["class_il"] == 1 / 3
    assert folder.results["identity"] == folder.identity
    first = (tmp_path / "results.json").read_bytes()
    folder.write_results({"passes": 12, "metrics": {"class_il": 1 / 3}})
    assert (tmp_path / "results.json").read_bytes() == first


def test_canonical_json_has_one_line_for_each_outermost_key() -> None:
    text = canonical_json({"b": {"y": 1, "x": [1, 2]}, "a": "é"}, "value")
    assert text == '{\n  "a": "\\u00e9",\n  "b": {"x": [1, 2], "y": 1}\n}\n'
    assert json.loads(text) == {"a": "é", "b": {"x": [1, 2], "y": 1}}


@pytest.mark.parametrize("operation", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    path = tmp_path / "results.json"
    write_atomically(path, b"old")

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, operation, fail)
        named = rf"no room for results\.json in .*{tmp_path.name} \(disk full\): free some"
        with pytest.raises(OSError, match=named):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_several_writers_of_one_file_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, replace = tmp_path / "stream.safetensors", os.replace

    def overtaken(source: Path, target: Path) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            write_atomically(target, b"theirs")
        replace(source, target)

    monkeypatch.setattr(os, "replace", overtaken)
    write_atomically(path, b"ours")
    assert path.read_bytes() == b"ours"
    assert list(tmp_path.iterdir()) == [path]


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist: is .* a run"):
        folder.config  # noqa: B018  # reading is what fails
    (tmp_path / "manifest.json").write_text('{"seed": ')
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        folder.manifest  # noqa: B018  # reading is what fails
    (tmp_path / "results.json").write_text("[1]")
    with pytest.raises(ValueError, match="holds a list"):
        folder.results  # noqa: B018  # reading is what fails


class TestChecksums:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> RunFolder:
        folder = RunFolder(tmp_path)
        with folder.claim(CONFIG):
            folder.write_manifest({"seed": 3})
            folder.log_path.write_text('{"step": 1, "time": {}}\n')
            folder.write_results({"metrics": {"class_il": 0.5}})
        return folder

    def test_a_finished_run_vouches_for_its_files(self, folder: RunFolder) -> None:
        assert folder.edited == []
        assert folder.results["metrics"] == {"class_il": 0.5}
        vouched = json.loads((folder.path / "checksums.json").read_text())
        assert sorted(vouched) == ["config.json", "log.jsonl", "manifest.json", "results.json"]

    @pytest.mark.parametrize("name", ["config.json", "log.jsonl", "manifest.json", "results.json"])
    def test_what_was_edited_is_named_and_refused(self, folder: RunFolder, name: str) -> None:
        path = folder.path / name
        path.write_text(path.read_text() + " ")
        with pytest.raises(EditedError, match=rf"{name} changed after the run had finished"):
            folder.results  # noqa: B018  # reading is what fails
        accepting = RunFolder(folder.path, accept_edited=True)
        assert accepting.results["metrics"] == {"class_il": 0.5}
        assert accepting.edited == [name]

    def test_a_missing_log_is_noticed(self, folder: RunFolder) -> None:
        folder.log_path.unlink()
        assert folder.edited == ["log.jsonl"]

    def test_a_run_from_before_there_were_any_is_read(self, folder: RunFolder) -> None:
        (folder.path / "checksums.json").unlink()
        assert folder.results["metrics"] == {"class_il": 0.5}

    def test_metrics_out_of_range_are_refused_all_the_same(self, folder: RunFolder) -> None:
        folder.write_results({"metrics": {"class_il": 46.094}})
        with pytest.raises(ValueError, match=r"results\.json is damaged: class_il = 46\.094"):
            folder.results  # noqa: B018  # reading is what fails


def test_deep_nesting_is_damage(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(ValueError, match=r"config\.json is damaged: it is nested too deeply"):
        RunFolder(tmp_path).config  # noqa: B018  # reading is what fails
