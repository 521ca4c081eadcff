"""What ranks of a process group tell each other: rows of all, sums over all, blocks in a ring.

Every sum is taken in the order of the ranks and then copied to all of them, so that all hold the
same bits, and the same ones again in the next run, whatever the backend.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from sphere_replay.errors import UserError


class LostRankError(UserError, RuntimeError):
    """Another rank has ended, or has not answered within the process group's timeout."""

    exit_code = 1


class Ring:
    """The ranks of a process group, each between two neighbours.

    Args:
        device: Where the tensors are that travel.
        group: The ranks; None for all there are.
    """

    def __init__(self, device: torch.device, group: "dist.ProcessGroup | None" = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(
                "there is no process group: call torch.distributed.init_process_group(...) first, "
                "or start one process and use allocate(...)"
            )
        self._group = group
        self._device = device
        self.rank = dist.get_rank(group)
        self.ranks = dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not in the group that it was given")
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        self._next = members[(self.rank + 1) % self.ranks]
        self._previous = members[(self.rank - 1) % self.ranks]

    def agree(self, problem: str | None) -> None:
        """Go on if no rank has a problem; else a ValueError everywhere, and nobody waits."""
        wrong = self.rows(torch.tensor([problem is not None]).long(), [1] * self.ranks)
        if problem is not None:
            raise ValueError(f"rank {self.rank}: {problem}")
        if wrong.any():
            first = int(wrong.nonzero()[0])
            raise ValueError(f"rank {first} cannot go on, and so no rank can: see its own message")

    def alike(self, what: str, own: str) -> None:
        """Go on if all ranks say the same of something; else a ValueError everywhere."""
        letters = list(own.encode())
        one_each = [1] * self.ranks
        lengths = self.rows(torch.tensor([len(letters)], device=self._device), one_each).tolist()
        rows = self.rows(torch.tensor(letters, device=self._device), lengths).tolist()
        ends = [0, *accumulate(lengths)]
        said = [bytes(rows[first:last]).decode() for first, last in pairwise(ends)]
        if len(set(said)) > 1:
            raise ValueError(f"{what} differ between ranks: {', '.join(said)}; make them the same")

    def rows(self, own: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all ranks, in their order; of each as many as counted."""
        padded = own.new_zeros(max(counts), *own.shape[1:], device=self._device)
        padded[: len(own)] = own
        found = [torch.empty_like(padded) for _ in range(self.ranks)]
        with self._listening("rows were gathered"):
            dist.all_gather(found, padded, group=self._group)
        return torch.cat([part[:count] for part, count in zip(found, counts, strict=True)])

    def total(self, values: Tensor, counts: Sequence[int]) -> Tensor:
        """Σ over the ranks of values `[m, p]`, where each rank sums the rows that it counts."""
        own = counts[self.rank]
        parts = values.new_empty(self.ranks * own, *values.shape[1:])
        with self._listening("sums were taken"):
            dist.all_to_all_single(
                parts, values.contiguous(), [own] * self.ranks, list(counts), group=self._group
            )
        total = torch.zeros_like(parts[:own])
        for part in parts.view(self.ranks, *total.shape):
            total += part
        return self.rows(total, counts)

    def reduced(self, values: Tensor, how: "dist.ReduceOp.RedOpType") -> Tensor:
        """Whole numbers summed, or any compared: what is exact in every order."""
        result = values.clone()
        with self._listening("values were compared"):
            dist.all_reduce(result, how, group=self._group)
        return result

    def blocks(
        self, own: Tensor, counts: Sequence[int], steps: int
    ) -> Iterator[tuple[int, Tensor]]:
        """This rank's own block, then those of the `steps` ranks before it: (whose, block).

        While one is worked on, it travels on to the next rank and the one before it arrives: a rank
        never holds more than its own and two others.
        """
        block = own.contiguous()
        for step in range(steps + 1):
            whose = (self.rank - step) % self.ranks
            if step == steps:
                yield whose, block
                return
            arriving = own.new_empty(counts[(whose - 1) % self.ranks], *own.shape[1:])
            with self._listening("features travelled"):
                works = dist.batch_isend_irecv(
                    [
                        dist.P2POp(dist.isend, block, self._next, self._group),
                        dist.P2POp(dist.irecv, arriving, self._previous, self._group),
                    ]
                )
            yield whose, block
            with self._listening("features travelled"):
                for work in works:
                    work.wait()
            block = arriving

    @contextmanager
    def _listening(self, doing: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise LostRankError(
                f"rank {self.rank} of {self.ranks} waited in vain for another one while {doing}: "
                "it has ended or hangs. The rank whose log ends first, or with another error, is "
                "the one to look at; how long to wait is the timeout of init_process_group"
            ) from error
