"""The model file for Mammoth: against a stand-in of its interface, and against a checkout if given.

The stand-in is of our own writing. `SPHERE_MAMMOTH=path/to/mammoth` names a real checkout, with its
requirements installed and its data at hand; its own `main.py` then trains the model.
"""

import io
import os
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.frameworks.mammoth_stand_in import Backbone, Dataset, imported, train
from integrations.by_hand import (
    BATCH,
    CAPACITY,
    COUNT,
    OPTIONS,
    assert_same,
    examples,
    network,
    trained,
)
from sphere_replay.integrations.mammoth import MODEL_FILE
from sphere_replay.integrations.mammoth.__main__ import main

CHECKOUT = Path(os.environ.get("SPHERE_MAMMOTH", ""), "main.py").parent


def options(**changes: Any) -> Namespace:
    with imported() as model:
        parser = model.get_parser(ArgumentParser())
    given = parser.parse_args(
        ["--buffer_size", f"{CAPACITY}", "--minibatch_size", f"{COUNT}", "--select", "sphere"]
    )
    given.rescore_every = OPTIONS["every"]
    return Namespace(**{**vars(given), "seed": None, "lr": 0.1, "optim_mom": 0.9, **changes})


def backbone() -> Backbone:
    layers = list(network())
    return Backbone(layers[0], nn.Sequential(*layers[1:]))


def stream() -> list[list[tuple[Tensor, Tensor]]]:
    return [
        list(zip(*(torch.split(part, BATCH) for part in examples(task)), strict=True))
        for task in range(2)
    ]


def made(net: nn.Module, arguments: Namespace, dataset: Dataset, transform: Any = None) -> Any:
    with imported() as model:
        return model(net, functional.cross_entropy, arguments, transform, dataset=dataset)


@pytest.mark.parametrize("epochs", [1, 2])
def test_training_ends_where_the_loop_by_hand_ends(epochs: int) -> None:
    model = made(backbone(), options(), Dataset())
    train(model, stream(), epochs)
    assert_same(model.net, trained(joint=True, epochs=epochs, fresh_optimizers=True))
    assert model.embedded.memory.seen == 60


def test_scoring_normalizes_and_training_augments_what_is_stored_plain() -> None:
    seen: dict[str, list[int]] = {"augmented": []}

    def augment(image: Tensor) -> Tensor:
        seen["augmented"].append(1)
        return 2 * image

    model = made(backbone(), options(), Dataset(lambda x: 2 * x), augment)
    train(model, stream())
    assert torch.equal(model.embedded.memory["x"][0], examples(0)[0][0])
    assert len(seen["augmented"]) == 6 + 8 * 8  # six are there, then eight are drawn
    plain = made(
        Backbone(nn.Sequential(Twice(), network()[0]), network()[1:]), options(), Dataset()
    )
    train(plain, stream())
    assert_same(model.net, plain.net)


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def test_a_saved_model_goes_on_with_the_same_bits() -> None:
    first, second = stream()
    model = made(backbone(), options(savecheck="task", save_checkpoint_mode="safe"), Dataset())
    train(model, [first])
    written = io.BytesIO()
    torch.save({"model": model.state_dict(), "buffer": model.buffer.serialize()}, written)
    written.seek(0)
    saved = torch.load(written, weights_only=True)
    later = made(backbone(), options(seed=7), Dataset())
    later.load_state_dict(saved["model"])
    later.load_buffer(saved["buffer"])
    for each in (model, later):
        train(each, [second])
    for mine, theirs in zip(later.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    with pytest.raises(ValueError, match="--save_checkpoint_mode safe"):
        made(backbone(), options(savecheck="task"), Dataset())


def test_networks_and_datasets_it_would_misread_are_refused() -> None:
    class Tempered(Backbone):
        def forward(self, x: Tensor, returnt: str = "out") -> Tensor:
            given = super().forward(x, returnt)
            return given if returnt == "features" else given / 3

    layers = list(network())
    odd = Tempered(layers[0], nn.Sequential(*layers[1:]))
    with pytest.raises(ValueError, match="Tempered is more than a classifier on its features"):
        train(made(odd, options(), Dataset()), stream())
    model = made(backbone(), options(), Dataset())
    x, y = examples(0)
    with pytest.raises(ValueError, match=r"stored images are \[3\], but the network takes \[6\]"):
        model.observe(x, y, x[:, :3])


def test_the_file_is_put_into_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mammoth", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert "name a checkout of Mammoth" in capsys.readouterr().err
    base = tmp_path / "models" / "utils" / "continual_model.py"
    base.parent.mkdir(parents=True)
    base.touch()
    main()
    assert (tmp_path / "models" / "er_sphere.py").read_bytes() == MODEL_FILE.read_bytes()
    assert "--model er_sphere" in capsys.readouterr().out


@pytest.mark.skipif(
    not (CHECKOUT / "models" / "er.py").is_file(), reason="SPHERE_MAMMOTH names no checkout"
)
def test_a_real_checkout_trains_it() -> None:
    target = CHECKOUT / "models" / MODEL_FILE.name
    ours = not target.exists()
    if ours:
        shutil.copyfile(MODEL_FILE, target)
    words = "--model er_sphere --dataset seq-mnist --buffer_size 200 --minibatch_size 32 --lr 0.03"
    command = [sys.executable, "main.py", *words.split(), "--n_epochs", "1", "--debug_mode", "1"]
    try:
        subprocess.run(command, cwd=CHECKOUT, check=True)
    finally:
        if ours:
            target.unlink()
