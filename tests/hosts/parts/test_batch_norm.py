"""Frozen statistics: batch norms use their batch and learn nothing from it."""

import pytest
import torch

from hosts.workbench import Net, bits, generator, same_bits
from sphere_replay.hosts.parts.extended_dark import frozen_statistics

IMAGES = torch.rand(7, 1, 4, 4, generator=generator())


def test_outputs_are_those_of_training_mode_and_no_buffer_moves() -> None:
    network = Net()
    before = bits(network)
    with frozen_statistics(network):
        frozen = network(IMAGES)
    assert same_bits(before, bits(network))
    assert torch.equal(frozen, network(IMAGES))
    assert not same_bits(before, bits(network))


def test_evaluation_mode_still_uses_the_running_statistics() -> None:
    network = Net()
    network(IMAGES)
    network.eval()
    expected = network(IMAGES)
    with frozen_statistics(network):
        assert torch.equal(network(IMAGES), expected)


def test_they_learn_again_afterwards_also_after_an_error() -> None:
    network = Net()
    with pytest.raises(ValueError, match="stop"), frozen_statistics(network):
        raise ValueError("stop")
    network(IMAGES)
    assert network.norm.num_batches_tracked == 1


def test_not_frozen_means_unchanged_and_norms_without_statistics_stay_so() -> None:
    network = Net()
    with frozen_statistics(network, False):
        network(IMAGES)
    assert network.norm.num_batches_tracked == 1
    network.norm.track_running_stats = False
    with frozen_statistics(network):
        pass
    assert not network.norm.track_running_stats
