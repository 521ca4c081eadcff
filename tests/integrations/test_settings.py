"""Replay settings in every form in which a user may have them."""

from pathlib import Path
from typing import Any

import pytest
from transformers import HfArgumentParser

from integrations.training import ARGUMENTS, same_weights, trainer, weights
from sphere_replay import Sphere
from sphere_replay.instruct.presets import resolve
from sphere_replay.integrations.transformers import ReplayArguments, SphereCallback, SphereTrainer
from sphere_replay.integrations.trl import GroupReplayArguments
from sphere_replay.replay import MirProportional, MirTop, SphereSelection
from sphere_replay.scoring import Scores


def test_a_mapping_a_file_and_arguments_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "replay.yaml"
    # YAML reads a number without a dot as text.
    file.write_text("capacity: 16\nvirtual_lr: 1e-3\nunit_mass: false\n")
    wanted = ReplayArguments(capacity=16, virtual_lr=1e-3, unit_mass=False)
    assert ReplayArguments.of(file) == wanted
    assert ReplayArguments.of({"capacity": 16, "virtual_lr": 1e-3, "unit_mass": False}) == wanted
    assert ReplayArguments.of(None) == ReplayArguments()
    assert SphereCallback({"capacity": 16}).arguments == ReplayArguments(capacity=16)
    assert GroupReplayArguments.of({"pool": 8}).pool == 8
    with pytest.raises(ValueError, match="unknown replay setting 'capcity': did you mean capacity"):
        ReplayArguments.of({"capcity": 16})
    file.write_text("- capacity")
    with pytest.raises(ValueError, match="must be a mapping from names of settings"):
        ReplayArguments.of(file)


def test_a_trainer_takes_a_mapping(tmp_path: Path) -> None:
    training = trainer("causal", tmp_path, base=_given(replay=dict(ARGUMENTS)))
    assert training.replay.arguments == ReplayArguments(**ARGUMENTS)


@pytest.mark.parametrize("kind", [ReplayArguments, GroupReplayArguments])
def test_a_command_line_and_its_configuration_file(kind: Any, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    configuration = trl.SFTConfig if kind is ReplayArguments else trl.GRPOConfig
    parser = trl.TrlParser((configuration, kind))
    file = tmp_path / "run.yaml"
    file.write_text(f"output_dir: {tmp_path}\nuse_cpu: true\nbf16: false\npool: 20\n")
    line = ["--config", str(file), "--capacity", "50", "--select", "mir", "--virtual_lr", "1e-3"]
    _, replay = parser.parse_args_and_config(line)
    assert replay == kind(capacity=50, pool=20, select="mir", virtual_lr=1e-3)


def test_the_parser_of_transformers() -> None:
    parser: Any = HfArgumentParser
    (replay,) = parser(ReplayArguments).parse_args_into_dataclasses(["--every", "2"])
    assert replay == ReplayArguments(every=2)


def test_a_parser_of_transformers_changes_no_other_settings() -> None:
    parser: Any = HfArgumentParser
    parser(ReplayArguments)  # it writes its own types into fields, which settings share
    assert resolve("instruct-tiny", pool=None).pool is None


class Mine:
    """Somebody's own way to choose: the lowest loss."""

    needs_scores, needs_features, needs_increments, every = True, False, False, 1

    def weigh(self, scores: Scores, running_scale: float | None, generator: Any) -> Any:
        return MirTop(top=4).weigh(Scores(-scores.losses, scores.losses), running_scale, generator)


def test_a_selection_may_be_an_object(tmp_path: Path) -> None:
    named = trainer("causal", tmp_path, replay={"select": "mir"})
    given = trainer("causal", tmp_path, replay={"select": MirProportional()})
    own = trainer("causal", tmp_path, replay={"select": Mine()})
    for each in (named, given, own):
        each.train()
    assert same_weights(weights(named), weights(given))
    assert not same_weights(weights(named), weights(own))


def test_recipes_are_selections_too(tmp_path: Path) -> None:
    recipe = Sphere.instruct(alpha=0.25)
    engine = trainer("causal", tmp_path, replay={"select": recipe}).replay.engine
    assert engine.selection == SphereSelection(recipe)
    arguments = GroupReplayArguments(select=MirTop(top=3))
    assert arguments.selection_on(recipe) == MirTop(top=3)


@pytest.mark.parametrize("wrong", [MirProportional, lambda scores: scores, 3, None])
def test_what_is_no_selection_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"select takes the name of a selection, a selection such"):
        ReplayArguments(select=wrong)


@pytest.mark.parametrize("wrong", [Sphere.calibrated(), SphereSelection(Sphere.calibrated())])
def test_a_recipe_that_asks_for_labels_is_refused_for_groups(wrong: Any) -> None:
    with pytest.raises(ValueError, match="asks neighbours about stored class labels"):
        GroupReplayArguments(select=wrong)
    assert ReplayArguments(select=wrong).select == wrong  # answers may be labels


def test_a_checkpoint_remembers_a_selection_that_is_an_object(tmp_path: Path) -> None:
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3}
    trainer("causal", tmp_path, replay={"select": MirTop(top=5)}, **saving).train()
    same = trainer("causal", tmp_path / "b", replay={"select": MirTop(top=5)}, max_steps=7)
    same.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    other = trainer("causal", tmp_path / "b", replay={"select": MirTop(top=6)}, max_steps=7)
    with pytest.raises(ValueError, match=r"select: saved .*'top': 5.*, now .*'top': 6"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))


def _given(**more: Any) -> Any:
    return lambda **options: SphereTrainer(**options, **more)
