"""Replay in Avalanche: its own SplitMNIST, its own strategy, one plugin of ours.

    python examples/avalanche_mnist.py --select sphere-calibrated --dataset_root path/to/data

Needs Avalanche, torchvision (for the images, which it downloads) and a minute or two.
"""

import argparse

import torch
from avalanche.benchmarks.classic import SplitMNIST
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.models import SimpleMLP
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive

from sphere_replay.integrations.avalanche import SphereReplayPlugin
from sphere_replay.randomness import generator_for, globally_seeded


def main() -> None:
    """Five experiences, and the accuracy on each of them in the end."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--select", default="sphere-calibrated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--experiences", type=int, default=5, help="train on the first so many")
    parser.add_argument("--dataset_root", default=None)
    given = parser.parse_args()
    benchmark = SplitMNIST(5, seed=given.seed, dataset_root=given.dataset_root)
    with globally_seeded(generator_for(given.seed, "initialization")):
        model = SimpleMLP(hidden_size=100)
        replay = SphereReplayPlugin(  # REPLAY
            mem_size=500, batch_size_mem=64, select=given.select, features="features", pool=250
        )
        strategy = Naive(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            train_mb_size=64,
            eval_mb_size=256,
            plugins=[replay],  # REPLAY
            evaluator=EvaluationPlugin(accuracy_metrics(experience=True)),
        )
        for number, experience in enumerate(benchmark.train_stream[: given.experiences]):
            strategy.train(experience)
            assert replay.replay is not None
            print(f"experience {number}: {replay.replay.metrics()['summary']}", flush=True)
        found = strategy.eval(benchmark.test_stream[: given.experiences])
    for name, share in found.items():
        if "Top1_Acc_Exp" in name:
            print(f"{name.rpartition('/')[2]}: {share:.3f}")


if __name__ == "__main__":
    main()
