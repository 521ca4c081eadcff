"""A vision run as a sequence of steps that can stop after any of them and go on later."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sphere_replay.errors import DivergenceError
from sphere_replay.hosts import Batch, Step
from sphere_replay.runs.job import ReplayTally, check_device, diverged, in_last_quarter, ratio
from sphere_replay.runs.recording import Recorder, Shown, moments_of
from sphere_replay.vision.assembly import build_host
from sphere_replay.vision.config import TAIL, VisionConfig
from sphere_replay.vision.datasets import ImageData, load_images
from sphere_replay.vision.encoders import encode_images, load_encoder
from sphere_replay.vision.evaluation import evaluate
from sphere_replay.vision.stream import build_stream, keep_stream

LOG_EVERY = 50


@dataclass
class LabelTally(ReplayTally):
    """What replay was spent on, summed over the run."""

    drawn: int = 0
    drawn_mislabelled: int = 0
    fair_mislabelled: float = 0.0
    """Mislabelled memories that uniform draws of the same sizes would have given on average."""
    tasks: list[list[int]] = field(default_factory=list)
    """Memories of each task that were drawn, a row for each task that was learned."""


@dataclass(frozen=True, eq=False)
class Turn:
    """One step of a run: a stream batch, or a part of the fit that follows a task."""

    task: int
    seen: int
    """Stream batches of the run up to here: the time axis that all hosts share."""
    indices: Tensor | None
    """The stream batch; None in a fit."""
    part: int = 0
    """The step of the fit."""
    first: bool = False
    last: bool = False
    """Whether the task, with its fit, begins or ends here."""


class VisionJob:
    """One configuration on one dataset. Labels, order and network are fixed by its seed."""

    def __init__(self, config: VisionConfig, data: ImageData) -> None:
        check_device(config.device)
        torch.set_num_threads(config.threads)
        self.config = config
        self._data = data
        self.stream = build_stream(
            data,
            config.seed,
            noise=config.noise,
            noise_kind=config.noise_kind,
            split_by=config.split_by,
            limit=config.limit,
            scenario=config.scenario,
            blur=config.blur,
            imbalance=config.imbalance,
        )
        self._host = build_host(config, data.shape)
        self._turns: list[Turn] = []
        for task in range(len(self.stream.tasks)):
            self._turns += self._turns_of(task)
        self._tail_steps = _tail_steps(self._turns)
        self._tail: list[float] = []
        self._class_il: list[list[float]] = []
        self._task_il: list[list[float]] = []
        self._anytime: list[tuple[int, float]] = []
        self._tally = LabelTally(tasks=self._no_draws())
        self._turn = self._turns[0]
        self._host.replay.drawn = self._count_tasks
        self._recorder: Recorder | None = None

    def __len__(self) -> int:
        """Steps of the run."""
        return len(self._turns)

    @property
    def checksums(self) -> dict[str, str]:
        """What the run is about to see: the images, and their labels and order."""
        return {"images": self._data.checksum, "stream": self.stream.digest}

    @property
    def status(self) -> str:
        """A few words for the progress bar."""
        if not self._anytime:
            return "no accuracy yet"
        return f"accuracy {100 * self._anytime[-1][1]:.1f}%"

    def advance(self, step: int) -> dict[str, Any] | None:
        """Take a step; a record for the log, if there is something worth a line."""
        self._turn = turn = self._turns[step]
        if self._recorder is not None:
            self._recorder.step = step
        told = not self.config.task_free
        if turn.first and told:
            self._host.start_task()
        fair = self._mislabelled_share()
        try:
            if turn.indices is None:
                done = self._host.fit(turn.part)
            else:
                done = self._host.observe(self._batch(turn.indices))
            if turn.last and (told or step + 1 == len(self)):
                self._host.end_task(last=step + 1 == len(self))
        except DivergenceError as error:
            raise diverged(error, step) from error
        self._count(done, fair)
        if turn.last or self._is_due(step):
            self._evaluate(turn)
        if step in self._tail_steps:
            self._tail.append(self._tail_accuracy(turn))
        if turn.last or step % LOG_EVERY == 0:
            return self._record(step, turn, done)
        return None

    def record(self, folder: Path, moments: int) -> None:
        """Keep so many rescorings of the stream, evenly spaced."""
        steps = [step for step, turn in enumerate(self._turns) if turn.indices is not None]
        engine = self._host.replay
        chosen = moments_of(steps, moments, engine.schedule.rarest)
        self._recorder = Recorder(folder, chosen, self.config.recipe, self._shown)
        self._recorder.watch(engine)

    def results(self) -> dict[str, Any]:
        """Deterministic results: accuracies per class after each task, costs, what was replayed."""
        tally = self._tally
        size = len(self.stream.tasks[0])
        counts = self.stream.test_labels.bincount(minlength=self.stream.num_classes)
        return {
            "task_ends": [turn.seen for turn in self._turns if turn.last],
            "accuracy": {
                "after_task": self._class_il,
                "task_il": self._task_il,
                "task_of_class": [label // size for label in range(self.stream.num_classes)],
                "counts": counts.tolist(),
                "anytime": [list(point) for point in self._anytime],
                "tail": list(self._tail),
            },
            "replay": {
                "noisy_lift": ratio(tally.drawn_mislabelled, tally.fair_mislabelled),
                "drawn_mislabelled_share": ratio(tally.drawn_mislabelled, tally.drawn),
                "mean_mass": tally.mean("mass"),
                "mean_effective_sample_size": tally.mean("effective_sample_size"),
                "share_of_tasks": [
                    [ratio(number, sum(row)) for number in row] for row in tally.tasks
                ],
            },
            "notes": dict(self._host.notes),
            "costs": self._host.costs.summary(len(self.stream)),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything the remaining steps and the results depend on."""
        return {
            "host": self._host.state_dict(),
            "class_il": self._class_il,
            "task_il": self._task_il,
            "anytime": [list(point) for point in self._anytime],
            "tail": list(self._tail),
            "tally": asdict(self._tally),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self._host.load_state_dict(state["host"])
        self._class_il = [list(row) for row in state["class_il"]]
        self._task_il = [list(row) for row in state["task_il"]]
        self._anytime = [(int(step), float(value)) for step, value in state["anytime"]]
        self._tail = list(state["tail"])
        self._tally = LabelTally(**state["tally"])
        self._tally.tasks = self._tally.tasks or self._no_draws()  # of a version that counted none

    def _turns_of(self, task: int) -> list[Turn]:
        seen = self._turns[-1].seen if self._turns else 0
        config = self.config
        batches = self.stream.batches(task, config.batch, drop_last=config.drop_last)
        turns = [Turn(task, seen + number, indices) for number, indices in enumerate(batches, 1)]
        if not turns:
            return []
        last = task + 1 == len(self.stream.tasks)
        parts = self._host.fit_steps(last=last) if last or not config.task_free else 0
        turns += [Turn(task, turns[-1].seen, None, part) for part in range(parts)]
        turns[0] = replace(turns[0], first=True)
        turns[-1] = replace(turns[-1], last=True)
        return turns

    def _is_due(self, step: int) -> bool:
        """Whether the anytime curve has a point here; a task's last batch waits for its fit."""
        turn, interval = self._turns[step], self.config.evaluate_every
        if turn.indices is None or not interval or turn.seen % interval:
            return False
        return turn.last or self._turns[step + 1].indices is not None

    def _batch(self, indices: Tensor) -> Batch:
        # index_select: indexing by a tensor is ten times slower on rows of uint8.
        parts = (self._data.train_images, self.stream.labels, self.stream.clean_labels)
        return Batch(*(part.index_select(0, indices).to(self.config.device) for part in parts))

    def _mislabelled_share(self) -> float:
        memory = self._host.memory
        if len(memory) == 0:
            return 0.0
        return int((memory["y"] != memory["true"]).count_nonzero()) / len(memory)

    def _count(self, done: Step, fair: float) -> None:
        tally, weighting = self._tally, self._host.replay.weighting
        tally.drawn += done.drawn
        tally.drawn_mislabelled += done.drawn_mislabelled
        tally.fair_mislabelled += done.drawn * fair
        if done.mass is not None:
            tally.add({"mass": done.mass})
            if weighting is not None:
                tally.add({"effective_sample_size": weighting.effective_sample_size})

    def _no_draws(self) -> list[list[int]]:
        return [[0] * len(self.stream.tasks) for _ in self.stream.tasks]

    def _count_tasks(self, slots: Tensor) -> None:
        counts = self._tasks_in(slots).bincount(minlength=len(self.stream.tasks)).tolist()
        row = self._tally.tasks[self._turn.task]
        row[:] = [before + now for before, now in zip(row, counts, strict=True)]

    def _tasks_in(self, slots: Tensor) -> Tensor:
        """Tasks of the memories in some slots, by their labels or their places in the stream."""
        memory = self._host.memory
        slots = slots.to(memory.device)
        if self.stream.domains:  # labels say nothing of tasks
            return torch.bucketize(memory.versions[slots].cpu(), self._ends, right=True)
        return memory["y"][slots].cpu() // len(self.stream.tasks[0])

    def _shown(self, slots: Tensor) -> Shown:
        """What a recording keeps of the memories in some slots; encoded ones have no picture."""
        memory = self._host.memory
        slots = slots.to(memory.device)
        labels, images = memory["y"][slots].cpu(), memory["x"][slots].cpu()
        keys, names = memory.versions[slots].cpu(), self.stream.class_order.tolist()
        if self.stream.domains:
            names = list(self.stream.tasks[0])
        return Shown(
            keys=keys.tolist(),
            tasks=self._tasks_in(slots),
            names=[str(name) for name in names],
            labels=labels,
            true=memory["true"][slots].cpu(),
            images=images if images.dtype == torch.uint8 else None,
        )

    @cached_property
    def _ends(self) -> Tensor:
        """How many examples the host was given when each task ends."""
        given = [0] * len(self.stream.tasks)
        for turn in self._turns:
            given[turn.task] += 0 if turn.indices is None else len(turn.indices)
        return torch.tensor(given).cumsum(0)

    def _evaluate(self, turn: Turn) -> None:
        accuracies = evaluate(self._host, self._data, self.stream, turn.task)
        seen = ~accuracies.class_il.isnan()
        counts = accuracies.counts[seen].double()
        overall = (accuracies.class_il[seen] * counts).sum() / counts.sum()
        self._anytime.append((turn.seen, float(overall)))
        if turn.last:
            self._class_il.append(_with_null(accuracies.class_il))
            self._task_il.append(_with_null(accuracies.task_il))

    def _tail_accuracy(self, turn: Turn) -> float:
        """Class-IL accuracy over all tasks now, on a part of the test set if it is said."""
        limit = self.config.tail_limit
        accuracies = evaluate(self._host, self._data, self.stream, turn.task, limit=limit)
        size = len(self.stream.tasks[0])
        # As in the metric of the end: over the examples of a task, then over tasks.
        weighted = accuracies.class_il.nan_to_num(0.0) * accuracies.counts
        correct, total = weighted.view(-1, size).sum(1), accuracies.counts.view(-1, size).sum(1)
        return float((correct / total.clamp(min=1)).mean())

    def _record(self, step: int, turn: Turn, done: Step) -> dict[str, Any]:
        # In a fit the weights that the controller still holds are those of the stream's end.
        weighting = self._host.replay.weighting if turn.indices is not None else None
        return {
            "step": step,
            "task": turn.task,
            **asdict(done),
            "effective_sample_size": weighting and weighting.effective_sample_size,
            **(weighting.details if weighting else {}),
            "accuracy": self._anytime[-1][1] if self._anytime else None,
            "notes": dict(self._host.notes),
            **asdict(self._host.costs),
        }


def make_job(
    config: VisionConfig, data: Path | None, out: Path, progress: bool = False
) -> VisionJob:
    """The job of a configuration; its stream is kept under `out/streams`."""
    images = load_images(config.dataset, data, progress=progress)
    if config.encoder:
        images = encode_images(images, load_encoder(config.encoder), progress=progress)
    job = VisionJob(config, images)
    keep_stream(job.stream, out)
    return job


def _tail_steps(turns: Sequence[Turn]) -> frozenset[int]:
    """Ten evenly spaced stream steps of the last quarter of the last task, its last among them.

    A host that fits its memory after the stream has no tail: what counts is what comes then.
    """
    last = [step for step, turn in enumerate(turns) if turn.task == turns[-1].task]
    if turns[-1].indices is None:
        return frozenset()
    return in_last_quarter(last, TAIL)


def _with_null(values: Tensor) -> list[Any]:
    return [None if math.isnan(value) else value for value in values.tolist()]
