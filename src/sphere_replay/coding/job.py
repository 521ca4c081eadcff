"""A code-generation run: TRL's loop with replay, judged stage by stage, resumable at any update."""

import logging
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sphere_replay.coding.config import CodingConfig
from sphere_replay.coding.evaluation import accuracy
from sphere_replay.coding.grading import Grader, Tally, VisibleReward, open_sandbox
from sphere_replay.coding.models import load_policy, prompt_ids
from sphere_replay.coding.problems import Problem, digest
from sphere_replay.coding.stages import build_stages, load_problems
from sphere_replay.extras import require
from sphere_replay.language.models import BaseModel, trainable, with_adapters
from sphere_replay.randomness import generator_for, globally_seeded
from sphere_replay.runs.job import AfterStep, check_device, diverged, ends_of_tasks
from sphere_replay.runs.recording import moments_of
from sphere_replay.sandbox import Sandbox
from sphere_replay.scoring import NonFiniteError
from sphere_replay.storage.trees import fingerprint

if TYPE_CHECKING:
    from sphere_replay.coding.trainer import CodingTrainer
    from sphere_replay.coding.watching import GroupWatch

LOGGER = logging.getLogger(__name__)

_RENAMED = r"`\w*gradient_checkpointing\w*` is deprecated"
"""What transformers says to TRL, which still has the old name: nothing that a user could mend."""


class CodingJob:
    """One configuration on its problems. Problems, their order and the policy are fixed.

    Args:
        config: The run.
        problems: All problems, prepared; which of them are used is the configuration's.
        base: The policy; adapters are put on it, so it serves one job.
        sandbox: Where programs run; closed with the job.
    """

    checkpoint_every = 5

    def __init__(
        self,
        config: CodingConfig,
        problems: Sequence[Problem],
        base: BaseModel,
        sandbox: Sandbox,
    ) -> None:
        torch.set_num_threads(config.threads)
        self.config = config
        self._sandbox = sandbox
        self._tokenizer = base.tokenizer
        prompts = zip(problems, prompt_ids(problems, base.tokenizer), strict=True)
        lengths = {problem.id: len(ids) for problem, ids in prompts}
        found = build_stages(problems, config, lambda p: lengths[p.id] <= config.max_prompt)
        self.stages = found.stages
        self._notes = _notes(base.tokenizer, found.too_long, config.max_prompt)
        self._too_long = found.too_long
        self._updates = found.updates(config.batch, config.passes)
        self._ends = ends_of_tasks([stage for stage, _ in self._updates])
        used = found.problems
        self._checksums = {
            "problems": digest(used.values()),
            "model": fingerprint(base.model.state_dict()),
        }
        self._grader = Grader(sandbox)
        self._reward = VisibleReward(self._grader, used)
        self.model = with_adapters(
            base,
            generator_for(config.seed, "adapters"),
            rank=config.rank,
            alpha=config.lora_alpha,
            targets=lambda model: "all-linear",
        ).to(config.device)
        self._trainable = trainable(self.model)
        self._initial: list[float] = []
        self._accuracy: list[list[float]] = []
        self._tally = Tally()
        self._trainer: CodingTrainer | None = None
        self._loaded: Mapping[str, Any] | None = None
        self._spent: dict[str, float] = {}
        self._recording: tuple[Path, int] | None = None
        self._watch: GroupWatch | None = None

    def __len__(self) -> int:
        """Updates of the run."""
        return len(self._updates)

    @property
    def checksums(self) -> dict[str, str]:
        """What the run is about to see and to begin with: problems, their order, weights."""
        return self._checksums

    @property
    def status(self) -> str:
        """A few words for the progress bar."""
        row = (self._accuracy or [self._initial])[-1]
        reward = f"reward {100 * self._tally.rewards[-1]:.0f}%" if self._tally.rewards else ""
        return f"accuracy {100 * sum(row) / len(row):.1f}%, {reward}" if row else reward

    def run(self, first_step: int, after_step: AfterStep) -> None:
        """Train from an update on; `after_step` is called after each."""
        try:
            if not self._initial:
                self._initial = self._measure()
            if first_step == len(self):
                return
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.filterwarnings("ignore", _RENAMED, FutureWarning)
                self._train(first_step, after_step, folder)
        except (NonFiniteError, RuntimeError) as error:
            # Sampling is where numbers that are none are noticed; torch has no class for it.
            if isinstance(error, NonFiniteError) or "probability tensor" in str(error):
                raise diverged(error) from error
            raise
        finally:
            self.close()

    def record(self, folder: Path, moments: int) -> None:
        """Keep so many weighings of groups, evenly spaced."""
        self._recording = (folder, moments)

    def close(self) -> None:
        """End the sandbox' workers."""
        self._sandbox.close()

    def results(self) -> dict[str, Any]:
        """Deterministic results: accuracies, rewards, what was replayed, costs."""
        tally, replay = self._tally, self._replay_state()
        costs = replay["costs"]
        return {
            "task_ends": self._ends,
            "accuracy": {
                "values": [list(row) for row in self._accuracy],
                "initial": list(self._initial),
                "tasks": [stage.name for stage in self.stages],
                "counts": [len(stage.judged) for stage in self.stages],
            },
            "reward": tally.summary(),
            "replay": {
                "mean_mass": tally.mean("mass"),
                "mean_effective_sample_size": tally.mean("ess"),
                "mixed_share": tally.mean("mixed"),
                "empty_share": tally.mean("empty"),
                "candidate_reward": tally.mean("reward"),
                "updates_without_mixed_group": int(tally.sums.get("fallback", 0)),
            },
            "costs": {
                "updates": len(self),
                "stream_programs": tally.programs,
                "candidate_programs": costs["programs"],
                "scoring_forwards": costs["forwards"],
                "replay_backwards": costs["backwards"],
            },
            "prompts": {
                "chat_template": self._tokenizer.chat_template is not None,
                "too_long": self._too_long,
            },
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything the remaining updates and the results depend on."""
        trainer = self._trainer
        if trainer is None or trainer.optimizer is None:
            raise RuntimeError("a run has a state once it has started")
        return {
            "parameters": {name: value.detach() for name, value in self._trainable.items()},
            "optimizer": trainer.optimizer.state_dict(),
            "replay": trainer.replay.state_dict(),
            "initial": list(self._initial),
            "accuracy": [list(row) for row in self._accuracy],
            "tally": asdict(self._tally),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; the trainer's part waits for the trainer."""
        with torch.no_grad():
            for name, value in self._trainable.items():
                value.copy_(state["parameters"][name])
        self._initial = list(state["initial"])
        self._accuracy = [list(row) for row in state["accuracy"]]
        self._tally = Tally(**state["tally"])
        self._loaded = state

    def _train(self, first: int, after_step: AfterStep, folder: str) -> None:
        from sphere_replay.coding.trainer import Steps, build_trainer

        self._trainer = trainer = build_trainer(
            self.config,
            self.model,
            self._tokenizer,
            [problems for _, problems in self._updates],
            self._reward,
            first_update=first,
            folder=folder,
        )

        def after_update(number: int, seconds: float) -> None:
            self._after_update(trainer, first + number, seconds, after_step)

        trainer.add_callback(Steps(self._begin, after_update))
        if self._loaded is not None:
            trainer.replay.load_state_dict(self._loaded["replay"])
        if self._recording is not None:
            self._start_recording(trainer, first, *self._recording)
        # Loaders draw a number now and then; it changes nothing, and must change nothing outside.
        with globally_seeded(generator_for(self.config.seed, "loop")):
            trainer.train()

    def _start_recording(
        self, trainer: "CodingTrainer", first: int, folder: Path, moments: int
    ) -> None:
        from sphere_replay.coding.watching import GroupWatch

        problems = {problem.id: problem for _, batch in self._updates for problem in batch}
        chosen = moments_of(range(len(self)), moments, every=1)
        stages = [stage.name for stage in self.stages]
        self._watch = GroupWatch(folder, chosen, trainer.replay, problems, stages, self._tokenizer)
        self._watch.recorder.step = first

    def _begin(self, optimizer: Any) -> None:
        """The optimizer is there, and has not been used."""
        if self._loaded is not None:
            optimizer.load_state_dict(self._loaded["optimizer"])
            self._loaded = None

    def _after_update(
        self, trainer: "CodingTrainer", step: int, seconds: float, after_step: AfterStep
    ) -> None:
        """Count, audit and evaluate; then the run can be saved."""
        durations = self._durations(trainer, seconds)
        stage = self._updates[step][0]
        self._tally.count(trainer.taken(), stage, self._grader)
        replay = trainer.replay
        metrics = replay.metrics()
        self._tally.add(metrics)
        record: dict[str, Any] = {
            "step": step,
            "stage": stage,
            "reward": self._tally.rewards[-1],
            "replay": metrics,
            **replay.costs,
        }
        if step == 0:
            record |= {"initial": self._initial, "notes": self._notes}
        if step + 1 in self._ends:
            self._accuracy.append(self._measure())
            record["accuracy"] = self._accuracy[-1]
        if self._watch is not None:
            self._watch.recorder.step = step + 1
        after_step(record, durations)

    def _durations(self, trainer: "CodingTrainer", seconds: float) -> dict[str, float]:
        """Where the seconds of an update went; they add up to it."""
        so_far = {
            **trainer.replay.seconds,
            "sampling": trainer.sampling_seconds,
            "execute": self._reward.seconds,
        }
        spent = {name: value - self._spent.get(name, 0.0) for name, value in so_far.items()}
        self._spent = so_far
        parts = {
            "generate": spent["sampling"] - spent["execute"],
            "execute": spent["execute"],
            "score": spent["score"],
            "allocate": spent["allocate"],
            "replay": spent["replay"],
        }
        return {**parts, "step": seconds - sum(parts.values())}

    def _measure(self) -> list[float]:
        """Full-suite accuracy of greedy programs on every stage, also on those to come."""
        length = self.config.max_completion
        return [
            accuracy(self.model, self._tokenizer, stage.judged, self._grader, length=length)
            for stage in self.stages
        ]

    def _replay_state(self) -> Any:
        if self._trainer is not None:
            return self._trainer.replay.state_dict()
        assert self._loaded is not None
        return self._loaded["replay"]


def make_job(
    config: CodingConfig, data: Path | None, out: Path, progress: bool = False
) -> CodingJob:
    """The job of a configuration: problems read, policy built or found, sandbox started."""
    check_device(config.device)
    for module in ("transformers", "trl", "datasets", *(("peft",) if config.rank else ())):
        require(module, "coding")
    if not progress:
        require("transformers.utils.logging", "coding").disable_progress_bar()
    problems = load_problems(config, data)
    sandbox = open_sandbox(config, out / "verdicts")
    try:
        return CodingJob(config, problems, load_policy(config, out / "models"), sandbox)
    except BaseException:
        sandbox.close()
        raise


def _notes(tokenizer: Any, too_long: int, most: int) -> list[str]:
    """What a reader of the log should know of the prompts."""
    notes = []
    if tokenizer.chat_template is None:
        notes.append("the model has no chat template: prompts are plain text")
    if too_long:
        notes.append(f"{too_long} problems have prompts of more than {most} tokens: left out")
    for note in notes:
        LOGGER.info(note)
    return notes
