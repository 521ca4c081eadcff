"""Strong views: each change against another library's, and what the whole does to a batch."""

import colorsys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.nn import functional

from sphere_replay.vision import strong_views as module
from sphere_replay.vision.strong_views import (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    boxes,
    luminance,
    resized_crop,
    shift_hue,
    strong_views,
)
from sphere_replay.vision.transforms import Pipeline
from tensors import seeded

FACTORS = [0.6, 1.0, 1.4]


def photographs(count: int, size: int = 12, channels: int = 3) -> Tensor:
    """Smooth random images as uint8."""
    small = torch.rand(count, channels, 4, 4, generator=seeded(count))
    large = functional.interpolate(small, size=size, mode="bicubic").clamp(0, 1)
    return (large * 255).to(torch.uint8)


def as_pil(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def from_pil(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


@pytest.mark.parametrize(
    ("change", "enhance"),
    [
        (adjust_brightness, ImageEnhance.Brightness),
        (adjust_contrast, ImageEnhance.Contrast),
        (adjust_saturation, ImageEnhance.Color),
    ],
)
def test_factors_do_what_pillow_does(
    change: Callable[[Tensor, Tensor], Tensor], enhance: Callable[[Image.Image], Any]
) -> None:
    images = photographs(6)
    factors = torch.tensor(FACTORS * 2)
    found = change(images.float() / 255, factors)
    for image, factor, view in zip(images, factors.tolist(), found, strict=True):
        expected = from_pil(enhance(as_pil(image)).enhance(factor))
        torch.testing.assert_close(view, expected, rtol=0, atol=3 / 255)


def test_hue_is_that_of_colorsys() -> None:
    images = torch.rand(4, 3, 3, 5, generator=seeded())
    images[0, :, 0, 0] = 0.4  # grey has no hue
    images[0, :, 0, 1] = 0.0
    turns = torch.tensor([0.0, 0.1, -0.1, 0.37])
    found = shift_hue(images, turns)
    for image, turn, view in zip(images, turns.tolist(), found, strict=True):
        pixels = image.flatten(1).T.tolist()
        expected = []
        for red, green, blue in pixels:
            hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
            expected.append(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value))
        torch.testing.assert_close(view.flatten(1).T, torch.tensor(expected), rtol=0, atol=1e-5)


def test_a_whole_turn_and_a_factor_of_one_change_nothing() -> None:
    images, ones = torch.rand(3, 3, 8, 8, generator=seeded(1)), torch.ones(3)
    torch.testing.assert_close(shift_hue(images, ones), images)
    for change in (adjust_brightness, adjust_contrast, adjust_saturation):
        torch.testing.assert_close(change(images, ones), images)


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_resized_crop_is_cut_first_and_then_interpolated(mirrored: bool) -> None:
    images = torch.rand(4, 3, 10, 12, generator=seeded(2))
    shown = torch.tensor([[0, 0, 10, 12], [2, 3, 5, 7], [9, 11, 1, 1], [0, 6, 4, 6]])
    found = resized_crop(images, shown, torch.full((4,), mirrored))
    for image, (top, left, height, width), view in zip(images, shown.tolist(), found, strict=True):
        part = image[None, :, top : top + height, left : left + width]
        expected = functional.interpolate(part, size=(10, 12), mode="bilinear")[0]
        if mirrored:
            expected = expected.flip(-1)
        torch.testing.assert_close(view, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [(32, 32), (8, 20), (1, 1)])
def test_boxes_lie_in_the_image_and_have_the_areas_that_were_asked_for(
    size: tuple[int, int],
) -> None:
    height, width = size
    top, left, tall, wide = boxes(torch.rand(4, 4000, generator=seeded(3)), height, width).T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + tall <= height).all()
    assert (left + wide <= width).all()
    assert tall.min() >= 1
    assert wide.min() >= 1
    if size == (32, 32):
        share = (tall * wide).double() / 1024
        assert 0.17 < float(share.min()) < 0.23
        assert float(share.max()) == 1
        # U(0.2, 1) less what sides longer than the image lose.
        assert float(share.mean()) == pytest.approx(0.58, abs=0.03)
        assert (tall.double() / wide).max() < 1.45


def test_views_differ_between_images_and_stay_in_range() -> None:
    images = photographs(1, 32).repeat(200, 1, 1, 1).float() / 255
    views = strong_views(images, seeded(4), mirror=True)
    assert views.shape == images.shape
    assert float(views.min()) >= 0
    assert float(views.max()) <= 1 + 1e-6
    assert len({view.numpy().tobytes() for view in views}) == 200
    # Greyscale is rare, and a view is grey in all pixels or in none.
    grey = (views.amax(dim=1) - views.amin(dim=1)).amax(dim=(1, 2)) < 1e-6
    assert 20 <= int(grey.sum()) <= 62


def test_groups_change_the_speed_and_not_the_views(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.rand(30, 3, 8, 8, generator=seeded(5))
    whole = strong_views(images, seeded(6), mirror=True)
    monkeypatch.setattr(module, "GROUP", 7 * 64)
    torch.testing.assert_close(strong_views(images, seeded(6), mirror=True), whole)


@pytest.mark.parametrize("mirror", [False, True])
def test_only_the_generator_decides(mirror: bool) -> None:
    images = torch.rand(9, 3, 8, 8, generator=seeded(7))
    state = torch.get_rng_state()
    first = strong_views(images, seeded(8), mirror=mirror)
    assert torch.equal(first, strong_views(images, seeded(8), mirror=mirror))
    assert not torch.equal(first, strong_views(images, seeded(9), mirror=mirror))
    assert torch.equal(state, torch.get_rng_state())


def test_no_view_is_mirrored_unless_asked_for() -> None:
    """Images that brighten to the right go on doing so."""
    ramp = torch.linspace(0.2, 0.8, 16).expand(60, 1, 16, 16)
    plain, flipped = (strong_views(ramp, seeded(10), mirror=mirror) for mirror in (False, True))
    rising = plain[:, 0, 8, -1] > plain[:, 0, 8, 0]
    assert rising.all()
    falling = int((flipped[:, 0, 8, -1] < flipped[:, 0, 8, 0]).sum())
    assert 15 <= falling <= 45


@pytest.mark.parametrize("channels", [1, 2])
def test_images_without_colors_are_cropped_and_change_in_brightness_and_contrast(
    channels: int,
) -> None:
    images = torch.rand(80, channels, 8, 8, generator=seeded(11))
    views = strong_views(images, seeded(12), mirror=False)
    assert views.shape == images.shape
    assert views.isfinite().all()
    assert (views != images).flatten(1).any(dim=1).sum() > 70
    torch.testing.assert_close(luminance(images), images.mean(dim=1, keepdim=True))


def test_a_pipeline_normalizes_strong_views_and_mirrors_only_where_training_views_are() -> None:
    images = photographs(8, 8)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    for flip in (False, True):
        found = Pipeline(mean, std, padding=4, flip=flip).strengthen(images, seeded(13))
        views = strong_views(images.float() / 255, seeded(13), mirror=flip)
        scale = torch.tensor(std)[:, None, None]
        torch.testing.assert_close(found, (views - torch.tensor(mean)[:, None, None]) / scale)
    grey = Pipeline().strengthen(photographs(8, 8, channels=1), seeded(13))
    assert grey.shape == (8, 1, 8, 8)


def test_an_empty_batch_has_no_views() -> None:
    assert strong_views(torch.empty(0, 3, 8, 8), seeded(), mirror=True).shape == (0, 3, 8, 8)
