"""Which problems are remembered, and which become candidates."""

from pathlib import Path
from typing import Any

import pytest
import torch

from integrations.trl.grpo import PROGRAMS, Witness, problems, trainer
from language import tiny
from sphere_replay.integrations.trl.problems import ProblemMemory, Problems, admission_schedule


def test_the_schedule_follows_from_the_seed_alone() -> None:
    first, again = admission_schedule(50, 10, 3), admission_schedule(50, 10, 3)
    assert torch.equal(first, again)
    assert first[:10].tolist() == list(range(10))
    assert int(first.max()) == 9
    assert (first[10:] == -1).any()
    assert (first[10:] >= 0).any()
    assert not torch.equal(first, admission_schedule(50, 10, 4))
    # A longer training set does not change what was decided for a shorter one.
    assert torch.equal(admission_schedule(80, 10, 3)[:50], first)


def test_a_problem_is_offered_once() -> None:
    memory = ProblemMemory(20, 3, seed=1)
    memory.offer([4, 4, 7])
    assert memory.problems.tolist() == [4, 7]
    memory.offer([7, 4, 9])
    assert memory.problems.tolist() == [4, 7, 9]
    memory.offer(list(range(20)))
    held = memory.problems.tolist()
    order = [4, 7, 9] + [problem for problem in range(20) if problem not in (4, 7, 9)]
    wanted = [-1, -1, -1]
    for problem, slot in zip(order, memory.schedule.tolist(), strict=True):
        if slot >= 0:
            wanted[slot] = problem
    assert held == wanted
    memory.offer(order)  # a second pass: what was let go does not return
    assert memory.problems.tolist() == held


def test_mixed_problems_are_favored_by_the_factor() -> None:
    memory = ProblemMemory(10, 10, seed=0)
    memory.offer(list(range(10)))
    memory.record(torch.arange(10), torch.arange(10) < 2)
    generator = torch.Generator().manual_seed(0)
    firsts = [int(memory.candidates(1, 4.0, generator)[0]) for _ in range(3000)]
    share = sum(problem < 2 for problem in firsts) / len(firsts)
    assert share == pytest.approx(2 * 4 / (2 * 4 + 8), abs=0.03)
    alike = [int(memory.candidates(1, 1.0, generator)[0]) for _ in range(3000)]
    assert sum(problem < 2 for problem in alike) / len(alike) == pytest.approx(0.2, abs=0.03)
    # A group that is sampled again counts instead of the one before.
    memory.record(torch.tensor([0, 9]), torch.tensor([False, True]))
    assert memory.mixed.nonzero()[:, 0].tolist() == [1, 9]


def test_candidates_are_distinct_and_at_most_all() -> None:
    memory = ProblemMemory(10, 10, seed=0)
    memory.offer([5, 3, 8])
    chosen = memory.candidates(48, 4.0, torch.Generator().manual_seed(0)).tolist()
    assert sorted(chosen) == [3, 5, 8]


def test_a_saved_memory_continues() -> None:
    memory = ProblemMemory(20, 3, seed=1)
    memory.offer(list(range(12)))
    memory.record(torch.tensor([2, 3]), torch.tensor([True, True]))
    other = ProblemMemory(20, 3, seed=1)
    other.load_state_dict(memory.state_dict())
    for each in (memory, other):
        each.offer(list(range(20)))
    assert torch.equal(memory.problems, other.problems)
    assert torch.equal(memory.mixed, other.mixed)
    with pytest.raises(ValueError, match="has 3 entries of 'held', this one 4"):
        ProblemMemory(20, 4, seed=1).load_state_dict(memory.state_dict())


def test_what_is_remembered_does_not_depend_on_the_model(tmp_path: Path) -> None:
    dataset = problems(16, passes=1)
    kept = []
    for seed in (0, 1):
        training = trainer(
            tmp_path,
            replay={"capacity": 5, "select": ("sphere", "mir")[seed], "replay_seed": 2},
            model=tiny.qwen2(seed=seed),
            dataset=dataset,
            max_steps=8,
            seed=seed,
        )
        training.train()
        kept.append(training.replay.memory.problems)
    assert torch.equal(*kept)
    assert kept[0].tolist() != list(range(5))


def test_an_update_may_sample_its_problems_one_after_the_other(tmp_path: Path) -> None:
    training = trainer(tmp_path, steps_per_generation=1, max_steps=3)
    training.train()
    assert training.replay.memory.problems.tolist() == [0, 1, 2, 3, 4, 5]
    assert training.replay.costs["programs"] == (2 + 4) * PROGRAMS


def test_the_streams_group_is_the_latest_until_candidates_are_sampled(tmp_path: Path) -> None:
    def reward(completion_ids: Any, **columns: Any) -> list[float]:
        """Mixed in the stream, never for candidates."""
        return [float(k % 2 and not training.replay.sampling) for k in range(len(completion_ids))]

    training = trainer(tmp_path, max_steps=6, reward=reward)
    witness = Witness(training)
    flags: list[list[bool]] = []
    step = training.replay.step

    def watched() -> None:
        flags.append(training.replay.memory.mixed.tolist())
        step()

    training.replay.step = watched
    training.train()
    assert flags[0] == [True, True, *[False] * 6]
    assert flags[1] == [True, True, True, True, *[False] * 4]
    # Both were candidates in the second update, the only ones there were.
    assert flags[2] == [False, False, True, True, True, True, False, False]
    last = witness.candidates[-1]
    assert last is not None
    assert not last.mixed.any()
    assert not training.replay.memory.mixed[last.problems].any()


def test_problems_are_numbered_by_first_appearance() -> None:
    named = Problems.of(problems(3, passes=2), "id")
    assert named.names == ("problem-0", "problem-1", "problem-2")
    assert named.rows == (0, 1, 2)
    assert len(named) == 3
    other = Problems.of(problems(3, passes=1), "id")
    assert other.digest == named.digest
    assert Problems.of(problems(4), "id").digest != named.digest
