"""The plugin in real strategies of Avalanche, in the environment that `make test-avalanche` makes.

Held against a loop by hand, against Avalanche's own replay, and run on its own SplitMNIST. Where
there is no torchvision, a stand-in lets Avalanche be imported.
"""

import copy
import importlib.util
import os
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.frameworks import torchvision_stand_in
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
from sphere_replay import Memory
from sphere_replay.memory import GreedyBalanced
from sphere_replay.randomness import generator_for

if importlib.util.find_spec("avalanche") is None:
    pytest.skip(
        "Avalanche has an environment of its own: make test-avalanche", allow_module_level=True
    )

torchvision_stand_in.install()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of solvers and old names, on import
    from avalanche.benchmarks import benchmark_from_datasets
    from avalanche.benchmarks.classic import SplitMNIST
    from avalanche.benchmarks.utils import _make_taskaware_tensor_classification_dataset
    from avalanche.models import MTSimpleMLP, SimpleMLP
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
    from avalanche.training.storage_policy import ReservoirSamplingBuffer
    from avalanche.training.supervised import Naive

    from sphere_replay.integrations.avalanche import MemoryBuffer, SphereReplayPlugin

pytestmark = pytest.mark.filterwarnings("ignore")  # Avalanche's, about itself


def sphere(**options: Any) -> SphereReplayPlugin:
    return SphereReplayPlugin(CAPACITY, features="0", **{**OPTIONS, **options})


def stream(tasks: int = 2) -> Any:
    """Experiences of thirty examples each."""
    datasets = []
    for task in range(tasks):
        x, y = examples(task)
        made = _make_taskaware_tensor_classification_dataset(
            x, y, targets=y.tolist(), task_labels=0
        )
        datasets.append(made)
    return benchmark_from_datasets(train=datasets).train_stream


def naive(plugin: Any, model: nn.Module | None = None, **options: Any) -> Any:
    model = network() if model is None else model
    return Naive(
        model=model,
        optimizer=momentum(model),
        train_mb_size=BATCH,
        plugins=[plugin],
        evaluator=EvaluationPlugin(),
        **options,
    )


@pytest.mark.parametrize(
    ("joint", "epochs", "online"),
    [(True, 1, True), (False, 1, True), (True, 2, True), (True, 1, False)],
)
def test_a_strategy_ends_where_the_loop_by_hand_ends(
    joint: bool, epochs: int, online: bool
) -> None:
    plugin = sphere(batch_size_mem=COUNT, joint_batch=joint, online=online)
    strategy = naive(plugin, train_epochs=epochs)
    for experience in stream():
        strategy.train(experience, shuffle=False)
    assert_same(strategy.model, trained(joint=joint, epochs=epochs, online=online))
    assert plugin.storage_policy.memory.seen == 60
    assert plugin.replay is not None
    assert str(plugin.replay.metrics()["summary"]).startswith("ESS ")


def test_the_memory_is_a_storage_policy_for_the_replay_of_avalanche() -> None:
    memory = Memory(12, GreedyBalanced(), generator=generator_for(0, "admission"))
    policy = MemoryBuffer(memory)
    assert len(policy.buffer) == 0
    strategy = naive(ReplayPlugin(mem_size=12, batch_size_mem=4, storage_policy=policy))
    for experience in stream(3):
        strategy.train(experience)
    assert memory.seen == 90
    dataset = policy.buffer
    assert len(dataset) == 12
    x, y, task = dataset[3]
    assert torch.equal(x, memory["x"][3])
    assert (int(y), task) == (int(memory["y"][3]), 0)
    assert torch.bincount(memory["y"], minlength=4).tolist() == [3, 3, 3, 3]
    with pytest.raises(ValueError, match="keeps its 12 slots"):
        policy.resize(strategy, 20)


def test_as_many_are_replayed_as_the_stream_has_unless_told() -> None:
    plugin = sphere()
    naive(plugin).train(stream(1)[0])
    assert plugin.embedded.batch == BATCH


def test_a_saved_plugin_goes_on_with_the_same_bits() -> None:
    first, second = stream()
    plugin = sphere(batch_size_mem=COUNT)
    strategy = naive(plugin)
    strategy.train(first, shuffle=False)
    model, state = copy.deepcopy(strategy.model), copy.deepcopy(plugin.state_dict())
    later = sphere(batch_size_mem=COUNT, seed=5)
    later.load_state_dict(state)
    resumed = naive(later, model)
    for each in (strategy, resumed):
        for group in each.optimizer.param_groups:
            group["momentum"] = 0.0  # the only thing that Avalanche would have to restore
        each.train(second, shuffle=False)
    for found, wanted in zip(model.parameters(), strategy.model.parameters(), strict=True):
        assert torch.equal(found, wanted)


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a MemoryBuffer of 20 examples"):
        SphereReplayPlugin(20, storage_policy=ReservoirSamplingBuffer(20))
    heads = MTSimpleMLP(input_size=6)
    with pytest.raises(ValueError, match="MTSimpleMLP needs a task label"):
        naive(SphereReplayPlugin(20, features="features"), heads).train(stream(1)[0])


needs_images = pytest.mark.skipif(
    not Path(os.environ.get("SPHERE_DATA", ""), "mnist", "train.parquet").is_file(),
    reason="SPHERE_DATA names no folder with mnist/train.parquet",
)


@needs_images
def test_on_its_own_split_mnist_the_first_classes_are_remembered() -> None:
    benchmark = SplitMNIST(5, seed=0)
    seen = set(benchmark.train_stream[0].classes_in_this_experience)
    test_x, test_y = (
        torch.stack([torch.as_tensor(row[place]) for row in benchmark.test_stream[0].dataset])
        for place in (0, 1)
    )
    assert set(test_y.tolist()) == seen
    shares = {}
    for select in ("none", "sphere-calibrated"):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = SimpleMLP(hidden_size=64)
            plugins = []
            if select != "none":
                plugins = [SphereReplayPlugin(200, select=select, features="features", pool=150)]
            strategy = Naive(
                model=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                train_mb_size=128,
                plugins=plugins,
                evaluator=EvaluationPlugin(),
            )
            for experience in benchmark.train_stream[:2]:
                strategy.train(experience)
        model.eval()
        shares[select] = float((model(test_x).argmax(dim=1) == test_y).double().mean())
    assert shares["none"] < 0.1
    assert shares["sphere-calibrated"] > 0.5


@needs_images
def test_the_example_learns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["avalanche_mnist.py", "--experiences", "2"])
    example = Path(__file__).parents[2] / "examples" / "avalanche_mnist.py"
    runpy.run_path(str(example), run_name="__main__")
    first, second, *accuracies = capsys.readouterr().out.splitlines()[-4:]
    assert first.startswith("experience 0: nothing is scored yet")
    assert second.startswith("experience 1: ESS ")
    assert min(float(line.split()[-1]) for line in accuracies) > 0.5
