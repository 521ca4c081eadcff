"""States, trees of tensors and plain values: compared to the last bit, and sent through files."""

import json
from collections.abc import Callable, Mapping

import torch

from sphere_replay.storage.trees import State, flatten, from_bytes, to_bytes, unflatten

Spelled = tuple[bytes, str]


def spelled(tree: Mapping[str, object]) -> Spelled:
    """Every bit of a state, as its files would hold it: equal ones are equal states."""
    tensors, skeleton = flatten(tree)
    return to_bytes(tensors), json.dumps(skeleton)


def read(written: Spelled) -> State:
    """The inverse of `spelled`."""
    return unflatten(from_bytes(written[0]), json.loads(written[1]))


def under_two_global_seeds(run: Callable[[], State]) -> tuple[State, State]:
    """What a run gives, twice, after checking that it does not move the global generator."""

    def seeded(seed: int) -> State:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            before = torch.get_rng_state()
            result = run()
            assert torch.equal(before, torch.get_rng_state())
        return result

    return seeded(1), seeded(2)
