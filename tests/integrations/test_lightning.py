"""The callback in real `Trainer.fit`s, held against the loop that one would write by hand."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from integrations.by_hand import (
    BATCH,
    CAPACITY,
    COUNT,
    OPTIONS,
    assert_same,
    examples,
    momentum,
    network,
    trained,
)

pytest.importorskip("lightning", reason="the extra `lightning` is not installed")

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from sphere_replay.integrations.lightning import SphereCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice on workers and loggers


def sphere() -> SphereCallback:
    return SphereCallback(CAPACITY, batch=COUNT, features="body.0", **OPTIONS)


class Module(LightningModule):
    """A classifier as people write it."""

    def __init__(self, manual: bool = False) -> None:
        super().__init__()
        self.body = network()
        self.automatic_optimization = not manual

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(x)
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = functional.cross_entropy(self(x), y)
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = momentum(self)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


def stream(tasks: int = 2) -> list[DataLoader[Any]]:
    return [DataLoader(TensorDataset(*examples(t)), batch_size=BATCH) for t in range(tasks)]


def trainer(folder: Path, callback: SphereCallback, **options: Any) -> Trainer:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "enable_checkpointing": False, "accelerator": "cpu"}
    quiet |= {"default_root_dir": folder, "max_epochs": 1}
    callbacks = [callback, *options.pop("callbacks", [])]
    return Trainer(callbacks=callbacks, **{**quiet, **options})


@pytest.mark.parametrize(
    ("manual", "options", "hand"),
    [
        (False, {}, {}),
        (True, {}, {}),
        (False, {"accumulate_grad_batches": 2}, {"accumulate": 2}),
        (False, {"gradient_clip_val": 0.05}, {"clip": 0.05}),
        (False, {"precision": "bf16-mixed"}, {"autocast": True}),
        (False, {"max_epochs": 2}, {"epochs": 2}),
    ],
    ids=["automatic", "manual", "accumulation", "clipping", "bf16", "epochs"],
)
def test_fit_ends_where_the_loop_by_hand_ends(
    tmp_path: Path, manual: bool, options: dict[str, Any], hand: dict[str, Any]
) -> None:
    module, callback = Module(manual), sphere()
    for loader in stream():
        trainer(tmp_path, callback, **options).fit(module, loader)
    decay = 1.0 if manual else 0.5  # then schedulers are the module's own business
    assert_same(module, trained(fresh_optimizers=True, decay=decay, **hand))
    assert callback.memory.seen == 60
    assert callback.replay is not None
    assert callback.replay.metrics()["memory"] == 20


def test_a_resumed_fit_ends_with_the_same_bits(tmp_path: Path) -> None:
    loader = stream(1)[0]

    def fitted(folder: Path, start: Path | None = None, **options: Any) -> tuple[Module, Any]:
        module, callback = Module(), sphere()
        books = ModelCheckpoint(folder, filename="{step}", save_top_k=-1)
        made = trainer(folder, callback, callbacks=[books], enable_checkpointing=True, **options)
        made.fit(module, loader, ckpt_path=start, weights_only=True)
        return module, callback

    whole, _ = fitted(tmp_path / "whole", max_epochs=3)
    fitted(tmp_path / "stopped", max_epochs=1)
    kept = tmp_path / "stopped" / "step=5.ckpt"
    saved = torch.load(kept, weights_only=True)["callbacks"]  # plain values, nothing to unpickle
    assert any("SphereCallback" in name for name in saved)
    resumed, callback = fitted(tmp_path / "resumed", kept, max_epochs=3)
    assert callback.memory.seen == 30
    for found, wanted in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(found, wanted)


class TwoOptimizers(Module):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]


class Skipping(Module):
    """Finds its first batch useless."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) if batch_idx else None


def test_what_cannot_work_is_refused_before_the_first_step(tmp_path: Path) -> None:
    callback = sphere()
    loader = stream(1)[0]
    with pytest.raises(ValueError, match="2 optimizers, and replay looks ahead"):
        trainer(tmp_path, callback).fit(TwoOptimizers(manual=True), loader)
    with pytest.raises(ValueError, match=r"precision='16-true': choose one of 32-true"):
        trainer(tmp_path, callback, precision="16-true").fit(Module(), loader)
    several: Any = SimpleNamespace(strategy=SimpleNamespace())
    with pytest.raises(ValueError, match="train with devices=1"):
        callback.on_train_start(several, Module())
    rows: Any = DataLoader([{"x": 1.0}, {"x": 2.0}])  # type: ignore[arg-type]  # no dataset
    with pytest.raises(ValueError, match=r"batches \(inputs, targets\), got a dict"):
        trainer(tmp_path, callback).fit(Module(), rows)
    with pytest.raises(ValueError, match="unknown module 'boby'"):
        trainer(tmp_path, SphereCallback(20, features="boby")).fit(Module(), loader)


def test_a_step_without_a_gradient_replays_nothing(tmp_path: Path) -> None:
    callback = sphere()
    trainer(tmp_path, callback).fit(Skipping(), stream(1)[0])
    assert callback.memory.seen == 30


def test_the_example_learns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lightning_digits.py"])
    example = Path(__file__).parents[2] / "examples" / "lightning_digits.py"
    runpy.run_path(str(example), run_name="__main__")
    *tasks, sentence = capsys.readouterr().out.splitlines()
    assert int(tasks[-1].split()[2].rstrip("%")) > 40  # two of ten classes are new
    assert sentence.startswith("ESS ")
