"""An instruction-tuning run as steps that can stop after any of them and go on later."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from sphere_replay.errors import DivergenceError
from sphere_replay.extras import require
from sphere_replay.instruct.classification import load_classification
from sphere_replay.instruct.config import InstructConfig
from sphere_replay.instruct.encoding import PromptEncoder, normalize
from sphere_replay.instruct.evaluation import Accuracy, measure_accuracy
from sphere_replay.instruct.generated import generated_corpus
from sphere_replay.instruct.models import load_base
from sphere_replay.instruct.stream import build_stream, chosen
from sphere_replay.instruct.tasks import ORDERS, Corpus, Example, Task
from sphere_replay.instruct.trainer import InstructTrainer
from sphere_replay.instruct.trunk import cut_trunk
from sphere_replay.language.memory import TASK
from sphere_replay.language.models import BaseModel
from sphere_replay.language.rows import IGNORED, Row
from sphere_replay.runs.job import (
    AfterStep,
    ReplayTally,
    diverged,
    ends_of_tasks,
    in_last_quarter,
    ratio,
)
from sphere_replay.runs.recording import Recorder, Shown, moments_of
from sphere_replay.scoring import NonFiniteError
from sphere_replay.storage.trees import fingerprint

LOG_EVERY = 20


@dataclass
class TaskTally(ReplayTally):
    """What replay was spent on, summed over the run."""

    drawn: list[list[int]] = field(default_factory=list)
    """`drawn[t][j]`: memories of task j replayed while task t was learned."""


class InstructJob:
    """One configuration on one corpus. Texts, their order and the model are fixed by its seed.

    Args:
        config: The run.
        corpus: All its tasks.
        base: The pretrained model; adapters are put on it, so it serves one job.
        trunks: Where the states of a frozen trunk are kept; None: nowhere.
        progress: Show a bar while it reads.
    """

    checkpoint_every = 500

    def __init__(
        self,
        config: InstructConfig,
        corpus: Corpus,
        base: BaseModel,
        trunks: Path | None = None,
        *,
        progress: bool = False,
    ) -> None:
        torch.set_num_threads(config.threads)
        self.config = config
        self.stream = build_stream(
            corpus,
            config.task_names,
            config.seed,
            noise=config.noise,
            cap=config.cap,
            tests_per_task=config.tests_per_task,
            evaluate_on=config.evaluate_on,
        )
        self._encoder = PromptEncoder.of(base, config.max_source, config.answer_tokens)
        self._encoder.check([part.task for part in self.stream.tasks])
        self._checksums = {
            "corpus": corpus.checksum,
            "stream": self.stream.digest,
            "model": fingerprint(base.model.state_dict()),
        }
        encode, parts = self._encoder, self.stream.tasks
        train = [_prompts(encode, part.task, part.train) for part in parts]
        self._prompts = [_prompts(encode, part.task, part.judged) for part in parts]
        self._texts: dict[int, Tensor] = {}
        if config.trained_blocks is not None:
            # All training texts, not only this run's: other seeds take theirs from the same file.
            known = [_prompts(encode, part.task, part.task.train) for part in parts]
            numbers = cut_trunk(
                base.model,
                [*known, *self._prompts],
                blocks=config.trained_blocks,
                window=config.window,
                tokens=config.token_budget,
                home=trunks,
                weights=self._checksums["model"],
                progress=progress,
            )
            self._texts = {int(found[0]): torch.tensor(text) for text, found in numbers.items()}
            train, self._prompts = (
                [[numbers[tuple(text.tolist())] for text in task] for task in texts]
                for texts in (train, self._prompts)
            )
        rows = [
            {**encode.row(prompt, item.label), TASK: torch.tensor([task])}
            for task, (prompts, part) in enumerate(zip(train, parts, strict=True))
            for prompt, item in zip(prompts, part.train, strict=True)
        ]
        updates = list(self.stream.batches(config.batch))
        self._tasks = [task for task, _ in updates]
        self._trainer = InstructTrainer(config, base, rows, [list(places) for _, places in updates])
        self._ends = ends_of_tasks(self._tasks)
        last = range(self._ends[-2] if len(self._ends) > 1 else 0, len(self))
        self._tail_steps = in_last_quarter(last, config.tail)
        self._accuracy: list[list[float]] = []
        self._tail: list[Accuracy] = []
        self._tally = TaskTally(drawn=[[0] * len(parts) for _ in parts])
        self._recorder: Recorder | None = None

    def __len__(self) -> int:
        """Updates of the run."""
        return len(self._tasks)

    @property
    def checksums(self) -> dict[str, str]:
        """What the run is about to see and to begin with: texts, their order, base weights."""
        return self._checksums

    @property
    def status(self) -> str:
        """A few words for the progress bar."""
        if not self._accuracy:
            return "no accuracy yet"
        return f"accuracy {100 * self._mean_accuracy():.1f}%"

    def run(self, first_step: int, after_step: AfterStep) -> None:
        """Train from an update on; `after_step` is called after each."""
        if first_step == len(self):
            return
        if self._recorder is not None:
            self._recorder.step = first_step
        try:
            self._trainer.train_from(first_step, lambda step: after_step(self._finish(step)))
        except (DivergenceError, NonFiniteError) as error:
            raise diverged(error, self._trainer.step) from error

    def record(self, folder: Path, moments: int) -> None:
        """Keep so many rescorings, evenly spaced."""
        engine = self._trainer.replay.engine
        chosen = moments_of(range(len(self)), moments, engine.schedule.rarest)
        self._recorder = Recorder(folder, chosen, self.config.recipe, self._shown)
        self._recorder.watch(engine)

    def results(self) -> dict[str, Any]:
        """Deterministic results: accuracy per task after each task, costs, what was replayed."""
        tally, count = self._tally, len(self.stream.tasks)
        return {
            "task_ends": self._ends,
            "accuracy": {
                "values": [row + [None] * (count - len(row)) for row in self._accuracy],
                "tasks": [part.task.name for part in self.stream.tasks],
                "counts": [len(part.judged) for part in self.stream.tasks],
                "tail": [measured.exact for measured in self._tail],
                "likely_tail": [m.likely for m in self._tail if m.likely is not None],
            },
            "replay": {
                "mean_mass": tally.mean("mass"),
                "mean_effective_sample_size": tally.mean("effective_sample_size"),
                "share_of_tasks": [
                    [ratio(number, sum(row)) for number in row] for row in tally.drawn
                ],
            },
            "costs": self._trainer.costs.summary(len(self.stream)),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything the remaining steps and the results depend on."""
        return {
            "learner": self._trainer.state_dict(),
            "accuracy": [list(row) for row in self._accuracy],
            "tail": [asdict(measured) for measured in self._tail],
            "tally": asdict(self._tally),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self._trainer.load_state_dict(state["learner"])
        self._accuracy = [list(row) for row in state["accuracy"]]
        self._tail = [Accuracy(**measured) for measured in state["tail"]]
        self._tally = TaskTally(**state["tally"])

    def _finish(self, step: int) -> dict[str, Any] | None:
        """Count and evaluate; a record for the log, if there is something worth a line."""
        task, last = self._tasks[step], step + 1 in self._ends
        self._count(task)
        if last:
            self._accuracy.append([measured.exact for measured in self._measure(task)])
        if step in self._tail_steps:
            self._tail.append(_averaged(self._measure(task)))
        if self._recorder is not None:
            self._recorder.step = step + 1
        return self._record(step, task) if last or step % LOG_EVERY == 0 else None

    def _measure(self, task: int) -> list[Accuracy]:
        """On each task up to this one."""
        return [
            measure_accuracy(
                self._trainer.model, self._encoder, part, prompts, tokens=self.config.token_budget
            )
            for part, prompts in zip(
                self.stream.tasks[: task + 1], self._prompts[: task + 1], strict=True
            )
        ]

    def _shown(self, slots: Tensor) -> Shown:
        """What a recording keeps of the memories in some slots: texts, and answers as labels."""
        memory = self._trainer.replay.memory
        rows, tasks = memory.rows(slots), memory.tasks[slots]
        names = [
            f"{part.task.name}: {normalize(label)}"
            for part in self.stream.tasks
            for label in part.task.labels
        ]
        pairs = list(zip(rows, tasks.tolist(), strict=True))
        answers = [self._answer(row, task) for row, task in pairs]
        labels = [
            names.index(f"{self.stream.tasks[task].task.name}: {normalize(answer)}")
            for (_, task), answer in zip(pairs, answers, strict=True)
        ]
        return Shown(
            keys=memory.slots.versions[slots].tolist(),
            tasks=tasks,
            names=names,
            labels=torch.tensor(labels),
            texts=[
                f"{self._prompt(row)}\n→ {answer}"
                for row, answer in zip(rows, answers, strict=True)
            ],
        )

    def _answer(self, row: Row, task: int) -> str:
        """The label that the row's target begins, or is."""
        target = row["labels"][row["labels"] != IGNORED].tolist()
        labels = self.stream.tasks[task].task.labels
        return next(label for label in labels if self._encoder.target(label) == target)

    def _prompt(self, row: Row) -> str:
        ids = row["input_ids"]
        if not self._encoder.is_encoder_decoder:  # the answer stands behind the prompt
            ids = ids[row["labels"] == IGNORED]
        return self._encoder.text(self._texts.get(int(ids[0]), ids))

    def _mean_accuracy(self) -> float:
        return sum(self._accuracy[-1]) / len(self._accuracy[-1])

    def _count(self, task: int) -> None:
        replayed, tally = self._trainer.replayed, self._tally
        if replayed is None:
            return
        weighting = self._trainer.replay.engine.weighting
        # The mass s_w of the weights drawn by; unit-mass replay does not multiply by it.
        tally.add({"mass": 1.0 if weighting is None else weighting.mass})
        if weighting is not None:
            tally.add({"effective_sample_size": weighting.effective_sample_size})
        for drawn in replayed.draw[TASK].tolist():
            tally.drawn[task][drawn] += 1

    def _record(self, step: int, task: int) -> dict[str, Any]:
        trainer, replayed = self._trainer, self._trainer.replayed
        return {
            "step": step,
            "task": task,
            "loss": trainer.loss,
            "replay_loss": None if replayed is None else replayed.loss,
            "replay": {} if replayed is None else trainer.replay.metrics(),
            "accuracy": self._mean_accuracy() if self._accuracy else None,
            **asdict(trainer.costs),
        }


def make_job(
    config: InstructConfig, data: Path | None, out: Path, progress: bool = False
) -> InstructJob:
    """The job of a configuration: its corpus read, its model built or found under `out/models`."""
    if not progress:
        require("transformers.utils.logging", "instruct").disable_progress_bar()
    corpus = load_corpus(config, data)
    base = load_base(config.model, corpus, out / "models", tiny=config.tiny)
    return InstructJob(config, corpus, base, out / "trunks", progress=progress)


def load_corpus(config: InstructConfig, data: Path | None) -> Corpus:
    """All tasks of the corpus, whatever the order: a tiny model is made from all of them."""
    if config.corpus == "generated":
        corpus = generated_corpus()
    else:
        needed = ORDERS["classification"][0] if config.model == "tiny" else config.task_names
        corpus = load_classification(needed, data)
    tasks = dict(corpus.tasks)
    for name, task in tasks.items():
        if not config.instructions:
            tasks[name] = task = replace(task, instruction="")
        if config.texts is not None:
            tasks[name] = replace(task, train=chosen(task, config.texts))
    return Corpus(corpus.name, tasks)


def _prompts(encoder: PromptEncoder, task: Task, examples: Sequence[Example]) -> list[Tensor]:
    return encoder.prompts(task, [example.sentence for example in examples])


def _averaged(measured: Sequence[Accuracy]) -> Accuracy:
    """The mean over tasks."""
    likely = [task.likely for task in measured if task.likely is not None]
    return Accuracy(fmean(task.exact for task in measured), fmean(likely) if likely else None)
