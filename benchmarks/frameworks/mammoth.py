"""Mammoth: `er_sphere.py` beside ER with a joint batch, both on a stand-in of Mammoth's interface.

Neither the loop nor this ER is Mammoth's code, so these are numbers of the model file, not of
Mammoth. In a checkout, `examples/mammoth.sh` compares with its own.
"""

from argparse import Namespace

from torch import nn
from torch.nn import functional

from benchmarks.frameworks.comparison import (
    CAPACITY,
    EVERY,
    OWN,
    RATE,
    REPLAYED,
    Stream,
    Watch,
)
from benchmarks.frameworks.mammoth_stand_in import Dataset, JointEr, imported
from benchmarks.frameworks.mammoth_stand_in import train as train_tasks

PACKAGE = "sphere-replay"


def train(method: str, stream: Stream, network: nn.Module, seed: int) -> dict[str, float]:
    """The stand-in's loop over all tasks."""
    arguments = Namespace(buffer_size=CAPACITY, minibatch_size=REPLAYED, seed=seed, lr=RATE)
    vars(arguments).update(select=method, rescore_every=EVERY, pool=None)
    with imported() as er_sphere:
        kind = JointEr if method == OWN else er_sphere
        model = kind(network, functional.cross_entropy, arguments, None, dataset=Dataset())
    watch = Watch(stream, network)
    train_tasks(model, stream.tasks, updated=watch.updated)
    return watch.result()
