"""The learner without a memory: plain SGD."""

from collections.abc import Callable

import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from hosts.workbench import BATCH, listening, observe_and_check, parts, stream_batch
from sphere_replay.hosts import Batch, NoReplay
from sphere_replay.replay import Draw


def test_it_is_plain_sgd_and_remembers_nothing() -> None:
    host = NoReplay(parts("sphere"))

    def losses(
        network: nn.Module, view: Callable[[Tensor], Tensor], batch: Batch, *drawn: Draw
    ) -> list[Tensor]:
        return [F.cross_entropy(network(view(batch.images)), batch.labels)]

    for seed in range(5):
        observe_and_check(host, stream_batch(seed), losses)
    assert len(host.memory) == host.memory.seen == 0
    assert listening(host).draws == []
    assert (host.costs.forward, host.costs.backward, host.costs.scored) == (5 * BATCH, 5 * BATCH, 0)


def test_a_step_reports_the_stream_loss_only() -> None:
    step = NoReplay(parts()).observe(stream_batch(0))
    assert step.loss > 0
    assert (step.replay_loss, step.mass, step.drawn) == (None, None, 0)
