"""Stages: which problems a run learns and is judged on, and in which order."""

from dataclasses import replace
from pathlib import Path

import pytest

from coding.brief import brief
from sphere_replay.coding.presets import resolve
from sphere_replay.coding.problems import Problem, write_problems
from sphere_replay.coding.stages import MICRO_SIZES, build_stages, lessons, load_problems
from sphere_replay.errors import DataError

MICRO_STAGES = ["arithmetic", "text", "lists", "choices"]


def anything(problem: Problem) -> bool:
    return True


def test_the_micro_run_has_ten_updates_a_stage_with_distinct_problems() -> None:
    config = resolve("coding-micro")
    stages = build_stages(load_problems(config, None), config, anything)
    assert [stage.name for stage in stages.stages] == MICRO_STAGES
    updates = stages.updates(config.batch, config.passes)
    assert [number for number, _ in updates] == [n for n in range(4) for _ in range(10)]
    for number, problems in updates:
        assert len({problem.id for problem in problems}) == 8
        assert {problem.stage for problem in problems} == {MICRO_STAGES[number]}
    assert {p.split for stage in stages.stages for p in stage.train} == {"train"}
    assert {p.split for stage in stages.stages for p in stage.judged} == {"evaluation"}


def test_an_update_may_reach_over_the_end_of_a_pass() -> None:
    config = brief(train=6, batch=4, passes=2, stages="text")
    stages = build_stages(load_problems(config, None), config, anything)
    updates = [[p.id for p in problems] for _, problems in stages.updates(4, 2)]
    order = [p.id for p in stages.stages[0].train]
    assert updates == [order[:4], order[4:] + order[:2], order[2:]]


def test_a_seed_changes_the_order_and_nothing_else() -> None:
    def learned(seed: int) -> list[str]:
        config = resolve("coding-micro", seed=seed)
        stages = build_stages(load_problems(config, None), config, anything).stages
        return [p.id for p in stages[0].train]

    assert learned(0) == learned(0)
    assert learned(0) != learned(1)
    assert sorted(learned(0)) == sorted(learned(1))


def test_lessons_have_nothing_in_common_with_any_split() -> None:
    used = {p.id for p in load_problems(resolve("coding-micro"), None)}
    assert len(used) == 4 * sum(MICRO_SIZES.values())
    assert not used & {p.id for p in lessons()}
    assert {p.stage for p in lessons()} == set(MICRO_STAGES)


def test_development_trains_and_judges_on_splits_of_its_own() -> None:
    config = brief(evaluate_on="development")
    stages = build_stages(load_problems(config, None), config, anything)
    assert {p.split for stage in stages.stages for p in stage.train} == {"fit"}
    assert {p.split for stage in stages.stages for p in stage.judged} == {"probe"}


def test_prompts_that_are_too_long_are_left_out_and_counted() -> None:
    config = brief()
    problems = load_problems(config, None)
    stages = build_stages(problems, config, lambda p: "capitals" not in p.prompt)
    left = [p for p in problems if p.stage in ("text", "choices") and "capitals" in p.prompt]
    assert stages.too_long == len(left) > 0
    assert not any("capitals" in p.prompt for p in stages.problems.values())


def test_stages_that_cannot_be_run_are_refused() -> None:
    problems = load_problems(brief(), None)
    with pytest.raises(DataError, match="unknown stage 'tekst': did you mean text"):
        build_stages(problems, brief(stages="tekst"), anything)
    with pytest.raises(DataError, match="has 40 training problems, but an update takes 41"):
        build_stages(problems, resolve("coding-micro", batch=41, micro_batch=8), anything)
    unjudged = [p for p in problems if p.split == "train"]
    with pytest.raises(DataError, match="no problem to evaluate on"):
        build_stages(unjudged, brief(), anything)


def test_problems_come_from_a_file_or_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPHERE_DATA", raising=False)
    config = resolve("coding-smollm2", problems="mine")
    some = [replace(p, split="train") for p in load_problems(brief(), None)[:3]]
    write_problems(tmp_path / "mine.jsonl", some)
    assert list(load_problems(config, tmp_path)) == some
    assert list(load_problems(config, tmp_path / "mine.jsonl")) == some
    monkeypatch.setenv("SPHERE_DATA", str(tmp_path))
    assert list(load_problems(config, None)) == some
    with pytest.raises(DataError, match=r"other\.jsonl does not exist: prepare problems with"):
        load_problems(resolve("coding-smollm2", problems="other"), tmp_path)
