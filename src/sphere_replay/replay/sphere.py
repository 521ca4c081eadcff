"""SPHERE for a training loop that is not ours.

replay = SphereReplay(memory, Sphere.vision(), every=4, generator=generator)
loss = criterion(model(x), y); loss.backward()        # the stream gradient
draw = replay.draw(32, model=model, lr=0.1)           # rescores when due; the model is untouched
(draw.scale * criterion(model(draw["x"]), draw["y"])).backward(); optimizer.step()
memory.add(x=x, y=y)
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sphere_replay.allocation import Sphere
from sphere_replay.memory import Memory
from sphere_replay.replay.controller import Draw, Replay, State
from sphere_replay.replay.selections import SphereSelection
from sphere_replay.scoring import Forward, Scores, cross_entropy_per_example, score


class SphereReplay:
    """A memory's SPHERE controller; see `Replay` for the options.

    `inputs` and `targets` name the memory's fields.
    """

    def __init__(
        self,
        memory: Memory,
        recipe: Sphere | None = None,
        *,
        generator: torch.Generator,
        every: int = 4,
        pool: int | None = None,
        replacement: bool = False,
        unit_mass: bool = False,
        inputs: str = "x",
        targets: str = "y",
    ) -> None:
        self._memory = memory
        self._inputs, self._targets = inputs, targets
        self.replay = Replay(
            memory,
            SphereSelection(recipe or Sphere.vision()),
            generator=generator,
            every=every,
            pool=pool,
            replacement=replacement,
            unit_mass=unit_mass,
        )

    def start_task(self) -> None:
        """Rescore at the next draw."""
        self.replay.start_task()

    def state_dict(self) -> State:
        """Everything the next draw depends on, apart from the memory and the model."""
        return self.replay.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict` was taken."""
        self.replay.load_state_dict(state)

    def draw(
        self,
        count: int,
        *,
        model: nn.Module,
        lr: float,
        per_example_loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        features: Forward | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        prepare: Callable[[Tensor], Tensor] | None = None,
    ) -> Draw:
        """Memories to replay, after `loss.backward()` on the stream batch.

        Args:
            count: How many.
            model: The model, with the stream gradient in its parameters' `.grad`.
            lr: Step size of the virtual step.
            per_example_loss: (outputs, targets) -> `[n]`; cross-entropy unless given.
            features: inputs -> (features `[n, d]`, outputs); `model.forward_features` unless given.
            optimizer: Take the virtual step with (a restored copy of) this optimizer, not with SGD.
            prepare: Turns stored inputs into model inputs, such as uint8 images into floats.
        """

        def scorer(slots: Tensor) -> Scores:
            return score(
                model,
                self._memory[self._inputs][slots],
                self._memory[self._targets][slots],
                lr=lr,
                forward=features,
                loss=per_example_loss or cross_entropy_per_example,
                optimizer=optimizer,
                prepare=prepare,
            )

        return self.replay.draw(count, scorer)
