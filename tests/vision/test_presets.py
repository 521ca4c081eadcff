"""Presets: the paper's tables, and configurations that are refused before any work starts."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from sphere_replay.allocation import Sphere
from sphere_replay.errors import ConfigError
from sphere_replay.hosts import HOSTS
from sphere_replay.hosts.optimizers import Sgd
from sphere_replay.replay import SELECTIONS, SphereSelection
from sphere_replay.vision.assembly import build_host
from sphere_replay.vision.config import VisionConfig
from sphere_replay.vision.models import MLP, ResNet18
from sphere_replay.vision.presets import names, provenance, resolve

FULL = ["digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "tiny-imagenet"]
SMALL = ["cifar10-small", "cifar100-small", "tiny-imagenet-small"]
FROZEN = ["cifar10-frozen", "cifar100-frozen", "tiny-imagenet-frozen"]


def test_the_presets_are_the_datasets_and_variants_for_photographs() -> None:
    assert names() == FULL + SMALL + FROZEN


@pytest.mark.parametrize("preset", FULL + SMALL + FROZEN)
@pytest.mark.parametrize("host", HOSTS)
def test_every_combination_resolves_and_survives_json(preset: str, host: str) -> None:
    dataset = preset.removesuffix("-small").removesuffix("-frozen")
    for select in SELECTIONS:
        if select != "uniform" and not HOSTS[host].REPLAYS:
            with pytest.raises(ConfigError, match=f"{host} replays nothing"):
                resolve(preset, host, select)
            continue
        config = resolve(preset, host, select, noise=0.2, seed=3)
        assert (config.dataset, config.host, config.select) == (dataset, host, select)
        assert (config.noise, config.seed) == (0.2, 3)
        assert (config.width == 64) is (preset not in SMALL)
        assert VisionConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


# Dataset, host, k_s, k_T, T_frac, interval, virtual step: the paper's table of vision settings.
ALLOCATION = [
    ("cifar10", "er", 5, 25, 0.5, 4, 0.1),
    ("mnist", "er", 5, 25, 0.5, 4, 0.1),
    ("cifar10", "er-ace", 10, 50, 1.0, 4, 0.1),
    ("cifar100", "er", 5, 25, 0.5, 4, 0.1),
    ("cifar100", "er-ace", 5, 25, 0.5, 4, 0.1),
    ("tiny-imagenet", "er", 5, 25, 0.5, 4, 0.1),
    ("tiny-imagenet", "er-ace", 5, 50, 0.25, 8, 0.1),
    ("mnist", "er-ace", 5, 25, 0.5, 4, 0.1),
]


@pytest.mark.parametrize(
    ("preset", "host", "k_s", "k_t", "t_frac", "every", "virtual_lr"), ALLOCATION
)
def test_allocation_settings_are_the_papers(
    preset: str, host: str, k_s: int, k_t: int, t_frac: float, every: int, virtual_lr: float
) -> None:
    config = resolve(preset, host, "sphere")
    assert (config.k_s, config.k_t, config.t_frac) == (k_s, k_t, t_frac)
    assert (config.every, config.virtual_lr, config.alpha) == (every, virtual_lr, 0.5)
    assert config.lr == 0.1  # the virtual step has the host's learning rate
    assert config.pool is None  # the entire memory is scored
    assert not config.unit_mass
    assert not config.replacement
    assert config.options.get("strength", 1.0) == 1.0
    assert config.admission == "reservoir"


@pytest.mark.parametrize(
    ("preset", "k_t", "every", "beta"),
    [("cifar10", 50, 8, 0.5), ("cifar100", 25, 4, 0.8), ("tiny-imagenet", 25, 4, 0.5)],
)
def test_settings_of_xder_are_the_papers(preset: str, k_t: int, every: int, beta: float) -> None:
    config = resolve(preset, "xder", "sphere")
    assert (config.k_s, config.k_t, config.t_frac, config.every) == (5, k_t, 0.5, every)
    assert (config.lr, config.virtual_lr, config.pool) == (0.03, 0.03, None)
    assert config.options == {
        "alpha": 0.1,
        "beta": beta,
        "gamma": 0.85,
        "contrast": 0.05,
        "contrast_batch": 64,
        "views": 4,
        "temperature": 5.0,
        "eta": 0.1,
        "margin": 0.3,
        "future_constraint": True,
        "past_constraint": False,
        "align_bn": True,
    }


@pytest.mark.parametrize(
    ("preset", "width", "limit", "pool"),
    [
        ("cifar10", 20, 10_000, None),
        ("cifar100", 20, 10_000, 500),
        ("tiny-imagenet", 12, 5_000, 500),
    ],
)
def test_small_presets_differ_in_scale_alone(
    preset: str, width: int, limit: int, pool: int | None
) -> None:
    for host in HOSTS:
        small, full = resolve(f"{preset}-small", host), resolve(preset, host)
        assert (small.width, small.limit, small.channels_last) == (width, limit, True)
        assert (small.pool, small.tail_limit) == (pool, 1000 if pool else None)
        scale: dict[str, Any] = {"width": 64, "limit": None, "pool": None, "tail_limit": None}
        rescaled = replace(small, **scale, channels_last=False, options=full.options)
        assert rescaled == full
        differing = {name for name in full.options if small.options[name] != full.options[name]}
        assert differing <= {"epochs", "fit_last_only"}


@pytest.mark.parametrize(("host", "epochs"), [("gdumb", 32), ("puridiver", 31), ("abs", 31)])
def test_small_presets_fit_the_memory_once_and_end_with_a_cycle(host: str, epochs: int) -> None:
    options = resolve("cifar10-small", host).options
    assert (options["epochs"], options["fit_last_only"]) == (epochs, True)


@pytest.mark.parametrize(
    ("preset", "capacity"),
    [("mnist", 500), ("cifar10", 500), ("cifar100", 2000), ("tiny-imagenet", 4000)],
)
@pytest.mark.parametrize("host", HOSTS)
def test_capacities_are_the_papers(preset: str, host: str, capacity: int) -> None:
    assert resolve(preset, host).capacity == capacity


@pytest.mark.parametrize("preset", ["cifar10", "cifar100"])
@pytest.mark.parametrize("host", HOSTS)
def test_batches_are_the_papers(preset: str, host: str) -> None:
    config = resolve(preset, host)
    assert (config.batch, config.replay_batch, config.augment) == (32, 32, True)


@pytest.mark.parametrize(("preset", "alpha", "beta"), [("cifar10", 0.5, 0.5), ("cifar100", 0.3, 1)])
def test_coefficients_of_der_are_the_papers(preset: str, alpha: float, beta: float) -> None:
    config = resolve(preset, "der-pp")
    assert (config.lr, config.virtual_lr) == (0.03, 0.03)
    assert config.options == {"alpha": alpha, "beta": beta}


@pytest.mark.parametrize(("preset", "pool"), [("cifar10", 96), ("cifar100", 160)])
def test_candidates_of_mir_are_the_papers_and_chosen_at_every_step(preset: str, pool: int) -> None:
    config = resolve(preset, "er", "mir")
    assert (config.pool, config.every, config.lr) == (pool, 1, 0.1)


@pytest.mark.parametrize("preset", ["cifar10", "cifar100", "tiny-imagenet"])
def test_er_ace_has_a_cosine_head_and_er_a_linear_one(preset: str) -> None:
    assert resolve(preset, "er-ace").head == "cosine"
    assert resolve(preset, "er").head == "linear"


@pytest.mark.parametrize("preset", FULL)
def test_gdumb_has_its_own_sampler(preset: str) -> None:
    assert resolve(preset, "gdumb").admission == "greedy-balanced"


def test_settings_can_be_overridden_and_the_virtual_step_follows_the_learning_rate() -> None:
    config = resolve("digits", lr=0.05, capacity=40, limit=200)
    assert (config.lr, config.virtual_lr, config.capacity, config.limit) == (0.05, 0.05, 40, 200)
    assert resolve("digits", lr=0.05, virtual_lr=0.2).virtual_lr == 0.2


def test_what_the_paper_leaves_open_is_marked() -> None:
    config = resolve("cifar10")
    assert not any(provenance(config, name) for name in ("capacity", "lr", "k_s", "every", "alpha"))
    assert provenance(config, "split_by") == "left open by the paper"
    assert provenance(resolve("digits"), "capacity") == "chosen here"
    assert "32" in provenance(resolve("mnist"), "replay_batch")
    assert "cosine" in provenance(resolve("mnist", "er-ace"), "head")
    assert not provenance(resolve("cifar10", "er-ace"), "head")
    assert provenance(resolve("cifar10-small"), "width") == "the paper's is 64"
    assert provenance(resolve("mnist"), "batch") == "left open by the paper"
    assert provenance(resolve("cifar10", select="mir"), "every") == "left open by the paper"
    fit = provenance(resolve("cifar10-small", "puridiver"), "options")
    assert fit.startswith("the full preset fits 255 epochs after every task; all but")
    assert not provenance(resolve("mnist"), "capacity")
    assert provenance(resolve("cifar100-small"), "limit") == "the paper uses the whole stream"
    scored = provenance(resolve("cifar100-small", select="sphere"), "pool")
    assert scored == "the paper scores the whole memory"
    assert not provenance(resolve("cifar100", select="sphere"), "pool")
    assert not provenance(resolve("cifar10"), "limit")
    assert "255 epochs" in provenance(resolve("cifar10-small", "abs"), "options")
    assert "epochs" not in provenance(resolve("cifar10", "abs"), "options")
    puridiver = resolve("cifar10", "puridiver", "sphere")
    assert all(provenance(puridiver, name) for name in ("k_s", "k_t", "t_frac", "every", "lr"))
    assert not provenance(puridiver, "alpha")
    for host in ("er", "er-ace", "xder"):
        listed = resolve("tiny-imagenet", host, "sphere")
        assert not any(provenance(listed, name) for name in ("k_s", "every", "lr", "pool"))
        assert provenance(listed, "batch") == "left open by the paper"
    assert provenance(resolve("tiny-imagenet", "er", "mir"), "pool") == "left open by the paper"
    assert not provenance(resolve("cifar100", "er", "mir"), "pool")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "cifar11"}, r"unknown preset 'cifar11'.*cifar10"),
        ({"preset": "mnist-small"}, r"unknown preset 'mnist-small'.*mnist"),
        ({"host": "er-acee"}, r"unknown host 'er-acee'.*er-ace"),
        ({"select": "spehre"}, r"unknown select\w* 'spehre'.*sphere"),
        ({"capacty": 5}, r"unknown setting 'capacty'.*capacity"),
        ({"noise_kind": "symetric"}, r"unknown noise_kind 'symetric'.*symmetric"),
        ({"split_by": "nosy"}, r"unknown split_by 'nosy'.*noisy"),
        ({"head": "cosin"}, r"unknown head 'cosin'.*cosine"),
        ({"admission": "resevoir"}, r"unknown admission 'resevoir'.*reservoir"),
        ({"noise": 1.0}, r"noise must lie in \[0, 1\), got 1"),
        ({"noise": -0.1}, r"noise must lie in \[0, 1\), got -0\.1"),
        ({"noise": float("nan")}, "noise must be finite, got nan"),
        ({"noise": 40}, r"noise must lie in \[0, 1\), got 40"),
        ({"capacity": 9}, r"10 distinct memories .* capacity=9: raise capacity or lower"),
        ({"replay_batch": 101}, r"101 distinct memories cannot be drawn from capacity=100"),
        ({"select": "mir", "pool": 9}, r"10 distinct memories cannot be drawn from pool=9"),
        ({"lr": 0.0}, "lr must be positive, got 0"),
        ({"lr": float("nan")}, "lr must be finite, got nan"),
        ({"batch": 0}, "batch must be positive, got 0"),
        ({"every": -4}, "every must be a whole number of at least 1, got -4"),
        ({"k_s": 0}, "k_s must be positive, got 0"),
    ],
)
def test_impossible_configurations_are_refused_with_advice(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(**{"preset": "digits"} | arguments)


@pytest.mark.parametrize("noise", [0.0, 0.2, 0.4, 0.6, 0.8])
def test_the_papers_noise_rates_are_possible(noise: float) -> None:
    assert resolve("mnist", noise=noise).noise == noise


def test_with_replacement_a_memory_may_be_smaller_than_the_replayed_batch() -> None:
    config = resolve("digits", capacity=4, replacement=True)
    assert (config.capacity, config.replay_batch) == (4, 10)


def test_a_saved_configuration_with_foreign_keys_is_refused() -> None:
    with pytest.raises(ConfigError, match="colour"):
        VisionConfig.from_dict(resolve("digits").to_dict() | {"colour": "blue"})


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_is_assembled_as_the_configuration_says(host: str) -> None:
    select = "sphere" if HOSTS[host].REPLAYS else "uniform"
    config = resolve(
        "digits", host, select, capacity=33, every=7, pool=20, lr=0.07, unit_mass=True, seed=5
    )
    built = build_host(config)
    assert type(built) is HOSTS[host]
    assert built.memory.capacity == 33
    assert built.memory.admission.name == config.admission
    schedule = built.replay.schedule
    assert (schedule.every, schedule.pool, built.replay.unit_mass) == (7, 20, True)
    assert built.optimizer.param_groups[0]["lr"] == built.parts.virtual_lr == 0.07
    assert built.parts.replay_batch == 10
    again = build_host(replace(config, seed=5)).network.state_dict()
    other = build_host(replace(config, seed=6)).network.state_dict()
    weights = built.network.state_dict()
    assert all(weights[name].equal(again[name]) for name in weights)
    assert not all(weights[name].equal(other[name]) for name in weights)


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": 1.5},
        {"t_frac": 0.0},
        {"virtual_lr": -0.1},
        {"pool": 0, "replacement": True},
        {"limit": 2},
        {"evaluate_every": -5},
    ],
)
def test_values_out_of_range_are_found_before_any_work_starts(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        resolve("digits", "er", "sphere", **wrong)


@pytest.mark.parametrize(
    ("host", "options"),
    [("er", {"strenght": 0.5}), ("er-ace", {"mask_rule": 7}), ("gdumb", {"epoch": 3})],
)
def test_options_that_a_host_does_not_have_are_found_before_any_work_starts(
    host: str, options: dict[str, float]
) -> None:
    """A misspelt option that is silently ignored makes a run that is not what its config says."""
    with pytest.raises(ValueError, match=next(iter(options))):
        build_host(resolve("digits", host, options=options))


def test_a_calibrated_selection_has_a_recipe_of_its_own() -> None:
    calibrated = partial(resolve, "digits", "er", "sphere-calibrated")
    config = calibrated(alpha=0.25, select_options={"agreement": 0.5})
    selection = build_host(config).replay.selection
    recipe = Sphere.calibrated(alpha=0.25, agreement=0.5)
    assert selection == SphereSelection(recipe, unit_mass=True, every=16)
    kept = calibrated(select_options={"unit_mass": False})
    assert build_host(kept).replay.selection == SphereSelection(Sphere.calibrated(), every=16)
    assert (kept.every, calibrated(every=4).every) == (16, 4)
    assert calibrated(calibration={"unit_mass": False}) == kept  # as it was called before
    with pytest.raises(ConfigError, match=r"selection sphere-calibrated: .*'agrement'"):
        calibrated(select_options={"agrement": 0.5})
    with pytest.raises(ConfigError, match=r"agreement must lie in \[0, 1\]"):
        calibrated(select_options={"agreement": 1.5})


def test_selections_have_the_options_that_are_theirs() -> None:
    backed = build_host(resolve("digits", "er", "sphere", select_options={"agreement": 0.5}))
    assert backed.replay.selection == SphereSelection(
        replace(resolve("digits").recipe, agreement=0.5)
    )
    with pytest.raises(ConfigError, match="selection sphere: unknown option 'k_s'"):
        resolve("digits", "er", "sphere", select_options={"k_s": 3})
    with pytest.raises(ConfigError, match="selection mir: no option 'agreement'"):
        resolve("digits", "er", "mir", select_options={"agreement": 0.5})


def test_optimizers_are_chosen_with_their_constants() -> None:
    plain = resolve("digits").stream_optimizer
    assert plain == Sgd()
    config = resolve("digits", "er", "sphere", optimizer="adamw", optimizer_options={"beta1": 0})
    host = build_host(config)
    assert isinstance(host.optimizer, torch.optim.AdamW)
    assert host.optimizer.defaults["betas"] == (0.0, 0.999)
    assert (config.lr, config.virtual_lr) == (1e-3, 1e-3)
    assert config.constants["host"]["optimizer"] == "AdamW"
    assert resolve("digits", optimizer="adam", lr=0.01).lr == 0.01
    with pytest.raises(ConfigError, match="optimizer sgd: unknown option 'momentun'"):
        resolve("digits", optimizer_options={"momentun": 0.9})
    with pytest.raises(ConfigError, match="adam: option beta2 takes a share from 0, below 1"):
        resolve("digits", optimizer="adam", optimizer_options={"beta2": 1})
    with pytest.raises(ConfigError, match="unknown optimizer 'adma'"):
        resolve("digits", optimizer="adma")


def test_networks_are_chosen_with_their_options() -> None:
    network = build_host(resolve("digits", network="mlp", network_options={"hidden": 7})).network
    assert isinstance(network, MLP)
    assert network.hidden1.out_features == 7
    assert isinstance(build_host(resolve("digits", network="resnet18", width=2)).network, ResNet18)
    with pytest.raises(ConfigError, match="unknown network 'restnet18'"):
        resolve("digits", network="restnet18")
    with pytest.raises(ConfigError, match=r"network mlp: .*'hiden'"):
        resolve("digits", network_options={"hiden": 7})


def test_the_mlp_begins_as_it_is_told() -> None:
    starts = [build_host(resolve("digits", initialization=start)) for start in ("xavier", "torch")]
    xavier, torchs = (host.network for host in starts)
    assert isinstance(xavier, MLP)
    assert isinstance(torchs, MLP)
    assert not bool(xavier.hidden1.bias.any())
    assert bool(torchs.hidden1.bias.any())
    bound = torchs.hidden1.in_features**-0.5
    assert torchs.hidden1.weight.abs().max() <= bound < xavier.hidden1.weight.max()
