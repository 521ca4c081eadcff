"""Replay on several processes: who does which part, and how the parts come together.

All collectives exchange plain tensors; those that exchange objects would pickle them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn

from sphere_replay.language.rows import Row
from sphere_replay.scoring import is_sharded
from sphere_replay.scoring.restoring import gradients_aside


@dataclass(frozen=True)
class Ranks:
    """This process among `world`; a single one needs no process group."""

    rank: int = 0
    world: int = 1

    @classmethod
    def current(cls) -> "Ranks":
        """As torch.distributed has it, if it was started."""
        if distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size())
        return cls()

    def share(self, items: Tensor) -> Tensor:
        """Every world-th item, beginning with the rank's own."""
        return items[self.rank :: self.world]

    def summed(self, values: Tensor) -> Tensor:
        """The sum over all processes, the same bits on each."""
        if self.world == 1:
            return values
        total = values.to(_device(), copy=True).contiguous()
        distributed.all_reduce(total)
        return total.to(values.device)

    def spread(self, values: Tensor, places: Tensor | Sequence[int], size: int) -> Tensor:
        """Rows of all processes in one tensor `[size, ...]`, known everywhere.

        Each process has some `values` `[n, ...]` for `places` `[n]` of its own.
        """
        whole = values.new_zeros(size, *values.shape[1:])
        whole[torch.as_tensor(places, dtype=torch.int64, device=values.device)] = values
        return self.summed(whole)

    def largest(self, value: int) -> int:
        """The largest value of all processes."""
        return max(int(each) for each in self.gathered(torch.tensor([value])))

    def add_gradients(self, model: nn.Module, backward: Callable[[float], float]) -> float:
        """Add to `.grad` what `backward` adds on each process; returns the sum of its values.

        `backward` gets the factor of its losses. A model that is sharded sums gradients itself, as
        means over the processes, and all must run it equally often: who has nothing to add does so
        with a loss of zero.
        """
        if self.world == 1:
            return backward(1.0)
        if is_sharded(model):
            value = backward(float(self.world))
            return float(self.summed(torch.tensor([value], dtype=torch.float64)))
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        with gradients_aside(parameters):
            value = backward(1.0)
            parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        total = self.summed(torch.cat([part.flatten() for part in parts]))
        sizes = [part.numel() for part in parts]
        for parameter, added in zip(parameters, torch.split(total, sizes), strict=True):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad += added.view_as(parameter)
        return float(self.summed(torch.tensor([value], dtype=torch.float64)))

    def gathered(self, values: Tensor) -> list[Tensor]:
        """The 1-D tensor of every process, in the order of ranks; lengths may differ."""
        if self.world == 1:
            return [values]
        local = values.to(_device())
        size = torch.tensor([len(local)], device=local.device)
        sizes = [torch.empty_like(size) for _ in range(self.world)]
        distributed.all_gather(sizes, size)
        lengths = [int(each) for each in sizes]
        padded = local.new_zeros(max(lengths))
        padded[: len(local)] = local
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        distributed.all_gather(parts, padded)
        return [part[:n].to(values.device) for part, n in zip(parts, lengths, strict=True)]

    def gathered_rows(self, rows: Sequence[Row]) -> list[Row]:
        """The rows of every process, in the order of ranks; each process needs at least one."""
        if self.world == 1:
            return list(rows)
        kinds = {name: values.dtype for name, values in rows[0].items()}
        sizes = torch.tensor([len(row[name]) for row in rows for name in kinds])
        values = torch.cat([row[name].long() for row in rows for name in kinds])
        gathered: list[Row] = []
        pairs = zip(self.gathered(sizes), self.gathered(values), strict=True)
        for lengths, flat in pairs:
            parts = iter(torch.split(flat, lengths.tolist()))
            for _ in range(len(lengths) // len(kinds)):
                gathered.append({name: next(parts).to(kind) for name, kind in kinds.items()})
        return gathered


def _device() -> torch.device:
    """Where the process group's backend wants its tensors."""
    return torch.device("cuda" if distributed.get_backend() == "nccl" else "cpu")
