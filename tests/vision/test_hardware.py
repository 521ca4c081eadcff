"""Devices, bfloat16 and channels-last: choices of a run that leave every other run as it was."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sphere_replay.errors import ConfigError, UsageError
from sphere_replay.hosts import HOSTS, Batch
from sphere_replay.runs.folder import identity
from sphere_replay.storage.trees import flatten, from_bytes, to_bytes, unflatten
from sphere_replay.vision import ImageData
from sphere_replay.vision.assembly import build_host
from sphere_replay.vision.config import VisionConfig
from sphere_replay.vision.job import VisionJob
from sphere_replay.vision.presets import resolve
from states import spelled
from tensors import seeded

TINY: dict[str, Any] = {
    "width": 8,
    "limit": 120,
    "capacity": 24,
    "batch": 8,
    "replay_batch": 8,
    "k_s": 2,
    "k_t": 4,
}
OPTIONS: dict[str, dict[str, float]] = {
    "xder": {"views": 2, "contrast_batch": 8},
    "puridiver": {"epochs": 2, "warm_up": 1},
    "abs": {"epochs": 2, "warm_up": 1},
    "gdumb": {"epochs": 2},
}


def patterns(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Ten random patterns of 4 x 4 patches, under noise."""
    patches = torch.rand(10, 3, 8, 8, generator=seeded(0)).mul(160)
    source, labels = seeded(seed), torch.arange(10).repeat(count // 10)
    noise = 90 * torch.rand(len(labels), 3, 32, 32, generator=source)
    images = patches.repeat_interleave(4, 2).repeat_interleave(4, 3)[labels] + noise
    return images.to(torch.uint8), labels


DATA = ImageData("cifar10", *patterns(400, 1), *patterns(100, 2), 10, "patterns")


def config(host: str = "er", select: str = "uniform", **settings: Any) -> VisionConfig:
    options = OPTIONS.get(host, {})
    return resolve("cifar10", host, select, noise=0.0, **TINY | {"options": options} | settings)


def run(chosen: VisionConfig, steps: int | None = None) -> VisionJob:
    job = VisionJob(chosen, DATA)
    for step in range(len(job) if steps is None else steps):
        job.advance(step)
    return job


def outputs_of_convolutions(network: nn.Module) -> list[Tensor]:
    """Grows with every forward."""
    seen: list[Tensor] = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda module, inputs, output: seen.append(output))
    return seen


@pytest.mark.parametrize(
    "choice", [{"device": "cuda"}, {"autocast": True}, {"channels_last": True}]
)
def test_a_choice_is_part_of_what_a_run_is(choice: dict[str, Any]) -> None:
    plain, chosen = config(), config(**choice)
    assert choice.keys() <= plain.to_dict().keys()
    assert choice.items() <= chosen.to_dict().items()
    assert identity(plain.to_dict()) != identity(chosen.to_dict())
    assert VisionConfig.from_dict(json.loads(json.dumps(chosen.to_dict()))) == chosen


def test_a_device_is_a_kind_of_processor() -> None:
    with pytest.raises(ConfigError, match=r"unknown device 'cuda:1'.*cuda"):
        config(device="cuda:1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_found_before_any_work_starts() -> None:
    with pytest.raises(UsageError, match="no GPU here: choose --device cpu"):
        VisionJob(config(device="cuda"), DATA)


def test_training_is_in_bfloat16_and_what_leaves_the_network_is_not() -> None:
    host, plain = build_host(config(autocast=True)), build_host(config())
    assert torch.equal(host.predict(DATA.test_images), plain.predict(DATA.test_images))
    seen = outputs_of_convolutions(host.network)
    host.predict(DATA.test_images)
    assert {output.dtype for output in seen} == {torch.float32}
    seen.clear()
    logits = host.forward(DATA.train_images[:8])
    assert {output.dtype for output in seen} == {torch.bfloat16}
    assert logits.dtype == torch.float32
    logits.square().mean().backward()  # type: ignore[no-untyped-call]  # untyped in torch
    assert {p.grad.dtype for p in host.network.parameters() if p.grad is not None} == {
        torch.float32
    }


@pytest.mark.parametrize("host", ["der-pp", "xder"])
def test_logits_are_stored_in_full_precision_that_bfloat16_does_not_have(host: str) -> None:
    job = run(config(host, "sphere", autocast=True), steps=4)
    logits = job.state_dict()["host"]["memory"]["fields"]["logits"]
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, logits.bfloat16().float())


def test_bfloat16_learns_as_float32_does() -> None:
    def losses(*, autocast: bool) -> list[float]:
        host = build_host(config("er", "sphere", autocast=autocast, lr=0.05))
        host.start_task()
        few = torch.split((DATA.train_labels < 2).nonzero().squeeze(1), 16)
        parts = [(DATA.train_images[rows], DATA.train_labels[rows]) for rows in few]
        return [host.observe(Batch(x, y, y)).loss for _ in range(4) for x, y in parts]

    half, full = losses(autocast=True), losses(autocast=False)
    assert half != full
    assert half[0] == pytest.approx(full[0], rel=0.05)
    assert min(half[0], full[0]) > 1.5
    assert max(sum(half[-5:]), sum(full[-5:])) / 5 < 0.5


@pytest.mark.parametrize("host", ["puridiver", "abs", "gdumb"])
def test_memory_fits_run_in_bfloat16(host: str) -> None:
    job = run(config(host, autocast=True, limit=40))
    weights = job.state_dict()["host"]["network"]
    assert {value.dtype for value in weights.values()} <= {torch.float32, torch.int64}
    assert all(value.isfinite().all() for value in weights.values())


def test_channels_last_reaches_every_map() -> None:
    host = build_host(config(channels_last=True))
    seen = outputs_of_convolutions(host.network)
    host.forward(DATA.train_images[:8])
    assert len(seen) == 20
    assert all(output.is_contiguous(memory_format=torch.channels_last) for output in seen)
    assert not any(output.is_contiguous() for output in seen if output.shape[-1] > 1)


@pytest.mark.parametrize(("select", "steps"), [("uniform", 2), ("sphere", 2)])
def test_channels_last_changes_nothing_but_the_rounding(select: str, steps: int) -> None:
    # Few steps: later a weight that moved in its last digit may change a draw.
    # An activation beside zero may fall on either side of it, so single weights tell nothing.
    jobs = [run(config("er", select, channels_last=on, lr=0.01), steps) for on in (True, False)]
    last, plain = (flat(job.state_dict()["host"]["network"]) for job in jobs)
    start = flat(build_host(config("er", select)).network.state_dict())
    assert (last - plain).norm() < 0.02 * (plain - start).norm()


def flat(state: dict[str, Tensor]) -> Tensor:
    """All weights in a row, without the statistics of batch norms."""
    kept = [value.flatten() for name, value in state.items() if name.endswith(("weight", "bias"))]
    return torch.cat(kept)


def test_a_run_with_all_choices_resumes_bit_for_bit() -> None:
    chosen = config("er-ace", "sphere", autocast=True, channels_last=True, limit=80)
    whole = VisionJob(chosen, DATA)
    job = VisionJob(chosen, DATA)
    for step in range(len(whole)):
        assert job.advance(step) == whole.advance(step)
        if step in (3, 7):
            tensors, skeleton = flatten(job.state_dict())
            job = VisionJob(chosen, DATA)
            job.load_state_dict(unflatten(from_bytes(to_bytes(tensors)), skeleton))
    assert job.results() == whole.results()
    assert spelled(job.state_dict()) == spelled(whole.state_dict())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("host", HOSTS)
def test_a_gpu_computes_what_a_cpu_does(host: str) -> None:
    select = "sphere" if HOSTS[host].REPLAYS else "uniform"
    chosen = config(host, select, limit=60, lr=0.01)
    losses = []
    for device in ("cpu", "cuda"):
        job = VisionJob(replace(chosen, device=device), DATA)
        record = job.advance(0)
        assert record is not None
        losses.append(record["loss"])
        for step in range(1, len(job)):
            job.advance(step)
        json.dumps(job.results(), allow_nan=False)
        weights = job.state_dict()["host"]["network"]
        assert {value.device.type for value in weights.values()} == {device}
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    run(replace(chosen, device="cuda", autocast=True, channels_last=True))
