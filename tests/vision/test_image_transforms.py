import pytest
import torch
from torch import Tensor

from sphere_replay.randomness import generator_for
from sphere_replay.vision import Pipeline, pipeline
from sphere_replay.vision.specs import DATASETS
from sphere_replay.vision.transforms import crop, flip, random_crop, random_flip


def images(count: int = 17, channels: int = 3, size: int = 12) -> Tensor:
    # Never 0, so that padding is recognized.
    shape = (count, channels, size, size)
    generator = generator_for(0, "test images")
    return torch.randint(1, 256, shape, generator=generator).to(torch.uint8)


def slow_crop(batch: Tensor, offsets: Tensor, padding: int) -> Tensor:
    height, width = batch.shape[2:]
    result = torch.zeros_like(batch)
    for n, (top, left) in enumerate(offsets.tolist()):
        for y in range(height):
            for x in range(width):
                row, column = y + top - padding, x + left - padding
                if 0 <= row < height and 0 <= column < width:
                    result[n, :, y, x] = batch[n, :, row, column]
    return result


def slow_flip(batch: Tensor, chosen: Tensor) -> Tensor:
    result = batch.clone()
    width = batch.shape[3]
    for n in range(len(batch)):
        if chosen[n]:
            for x in range(width):
                result[n, :, :, x] = batch[n, :, :, width - 1 - x]
    return result


def test_crops_equal_a_loop_over_images_and_pixels() -> None:
    batch = images()
    offsets = torch.randint(9, (len(batch), 2), generator=generator_for(0, "augmentation"))
    assert torch.equal(crop(batch, offsets, 4), slow_crop(batch, offsets, 4))
    assert torch.equal(
        random_crop(batch, generator_for(0, "augmentation")), crop(batch, offsets, 4)
    )


def test_flips_equal_a_loop_over_images() -> None:
    batch = images()
    chosen = torch.rand(len(batch), generator=generator_for(0, "augmentation")) < 0.5
    assert 0 < int(chosen.sum()) < len(batch)
    assert torch.equal(flip(batch, chosen), slow_flip(batch, chosen))
    assert torch.equal(random_flip(batch, generator_for(0, "augmentation")), flip(batch, chosen))


def test_the_middle_window_is_the_image_and_the_corner_shows_padding() -> None:
    batch = images(count=2)
    offsets = torch.tensor([[4, 4], [0, 0]])
    cropped = crop(batch, offsets, 4)
    assert torch.equal(cropped[0], batch[0])
    assert int(cropped[1, :, :4].sum()) == int(cropped[1, :, :, :4].sum()) == 0
    assert torch.equal(cropped[1, :, 4:, 4:], batch[1, :, :-4, :-4])


def test_every_window_position_and_both_sides_occur() -> None:
    # One lit pixel in the middle shows where the window was.
    batch = torch.zeros(4000, 1, 9, 9, dtype=torch.uint8)
    batch[:, 0, 4, 4] = 1
    positions = random_crop(batch, generator_for(0, "augmentation")).flatten(1).int().argmax(dim=1)
    counts = positions.bincount(minlength=81)
    assert int(counts.min()) > 20  # 49 expected
    lit = torch.zeros(4000, 1, 1, 2, dtype=torch.uint8)
    lit[..., 0] = 1
    share = float(random_flip(lit, generator_for(0, "augmentation"))[..., 1].float().mean())
    assert abs(share - 0.5) < 0.04


def test_augmentation_is_crop_then_flip_then_normalization() -> None:
    batch = images(size=32)
    views = pipeline("cifar10")
    generator = generator_for(5, "augmentation")
    expected = views.prepare(random_flip(random_crop(batch, generator), generator))
    assert torch.equal(views.augment(batch, generator_for(5, "augmentation")), expected)
    assert not torch.equal(views.augment(batch, generator_for(6, "augmentation")), expected)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "tiny-imagenet"])
def test_photographs_are_normalized_channel_by_channel(name: str) -> None:
    spec = DATASETS[name]
    assert spec.mean is not None
    assert spec.std is not None
    batch = images(count=3, size=spec.shape[1])
    prepared = pipeline(name).prepare(batch)
    assert prepared.dtype == torch.float32
    for channel, (mean, std) in enumerate(zip(spec.mean, spec.std, strict=True)):
        expected = (batch[:, channel].double() / 255 - mean) / std
        assert torch.allclose(prepared[:, channel].double(), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "digits"])
def test_grey_images_are_only_scaled(name: str) -> None:
    batch = images(channels=1)
    views = pipeline(name)
    generator = generator_for(0, "augmentation")
    state = generator.get_state()
    assert torch.equal(views.prepare(batch), batch.float() / 255)
    assert torch.equal(views.augment(batch, generator), views.prepare(batch))
    assert torch.equal(generator.get_state(), state)


def test_augmentation_can_be_switched_off() -> None:
    batch = images(size=32)
    views = pipeline("cifar10").without_augmentation()
    assert torch.equal(views.augment(batch, generator_for(0, "augmentation")), views.prepare(batch))
    assert views.mean == pipeline("cifar10").mean


def test_views_leave_the_stored_images_alone() -> None:
    batch = images(size=32)
    pipeline("cifar10").augment(batch, generator_for(0, "augmentation"))
    assert torch.equal(batch, images(size=32))


def test_an_empty_batch_has_an_empty_view() -> None:
    empty = images(size=32)[:0]
    assert pipeline("cifar10").augment(empty, generator_for(0, "augmentation")).shape == (
        0,
        3,
        32,
        32,
    )


def test_scaled_images_and_half_constants_are_refused() -> None:
    with pytest.raises(TypeError, match=r"stored as uint8, got torch.float32"):
        pipeline("mnist").prepare(images().float())
    with pytest.raises(ValueError, match="mean and std belong together"):
        Pipeline(mean=(0.5,))
    with pytest.raises(ValueError, match="padding must be 0"):
        Pipeline(padding=-1)
