"""Strong views for contrastive terms: resized crops, flips, jittered colors, greyscale.

All of it works on whole batches on the tensor's own device, one set of random numbers per image;
only the order of the four color changes is drawn per batch. Images are float `[n, c, h, w]` in
[0, 1]. On grey images (c = 1) the changes that need colors, saturation, hue and greyscale, have
nothing to change; crops, flips, brightness and contrast remain.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

SMALLEST_AREA = 0.2
"""Least part of the image that a crop shows."""
WIDEST_RATIO = 4 / 3
"""Sides of a crop, before it is resized, differ by at most this factor."""
JITTERED, GREY = 0.8, 0.2
"""Probabilities of a jittered and of a grey view."""
STRENGTH = 0.4
"""Brightness, contrast and saturation are multiplied by U(1 - 0.4, 1 + 0.4)."""
HUE = 0.1
"""Hue moves by U(-0.1, 0.1) turns of the color circle."""
STRONG = {
    "smallest_area": SMALLEST_AREA,
    "widest_ratio": WIDEST_RATIO,
    "jittered": JITTERED,
    "grey": GREY,
    "strength": STRENGTH,
    "hue": HUE,
}
"""By the names that a run's identity knows them by."""
GROUP = 64 * 32 * 32
"""Pixels at a time on a processor, whose cache then holds them: faster than all at once."""
LUMA = (0.299, 0.587, 0.114)


def resized_crop(images: Tensor, shown: Tensor, mirrored: Tensor) -> Tensor:
    """Show a box of every image at the full size `[h, w]`, some of them mirrored.

    `shown` int `[n, 4]` holds top, left, height and width; `mirrored` is bool `[n]`. Bilinear, and
    nothing from outside a box enters its view.
    """
    height, width = images.shape[-2:]
    rows = _positions(shown[:, 0], shown[:, 2], height)
    columns = _positions(shown[:, 1], shown[:, 3], width)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    grid = torch.stack(
        [columns[:, None, :].expand(-1, height, -1), rows[:, :, None].expand(-1, -1, width)], dim=-1
    )
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=True)


def adjust_brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Towards black (factor 0) or away from it; `factors` `[n]`, as in all of these."""
    return (images * factors[:, None, None, None]).clamp_(0, 1)


def adjust_contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Towards the image's mean grey or away from it."""
    mean = luminance(images).mean(dim=(1, 2, 3), keepdim=True)
    return _blend(images, mean, factors)


def adjust_saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Towards the grey image or away from it."""
    return _blend(images, luminance(images), factors)


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue (of hue, saturation, value) of RGB images; a whole turn changes nothing."""
    red, green, blue = images.unbind(1)
    value = images.amax(1)
    chroma = value - images.amin(1)
    # Which channel is the largest, as 0 or 1: several times faster than torch.where.
    not_red, not_green = (value - red).sign_(), (value - green).sign_()
    sixths = (blue - red).add_(chroma, alpha=2)
    sixths.lerp_((red - green).add_(chroma, alpha=4), not_green)
    sixths = (green - blue).lerp_(sixths, not_red).div_(chroma.clamp(min=1e-12))
    turned = sixths.div_(6).add_(turns[:, None, None])
    shifted = torch.empty_like(images)
    for channel, offset in enumerate((1 / 2, 1 / 6, -1 / 6)):
        # Distance on the circle from the opposite color: beyond 1/3 the channel is at its largest.
        away = turned + offset
        away.sub_(away.round()).abs_().mul_(-6).add_(2).clamp_(0, 1)
        torch.addcmul(value, chroma, away, value=-1, out=shifted[:, channel])
    return shifted


def luminance(images: Tensor) -> Tensor:
    """`[n, 1, h, w]`: how bright an RGB pixel looks; of other images the mean channel."""
    if images.shape[1] != 3:
        return images.mean(dim=1, keepdim=True)
    red, green, blue = torch.split(images, 1, dim=1)
    grey: Tensor = LUMA[0] * red
    return grey.add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def boxes(uniforms: Tensor, height: int, width: int) -> Tensor:
    """Boxes int `[n, 4]` from numbers `[4, n]` in [0, 1): area, ratio, top and left.

    The area is U(0.2, 1) of the image's, the ratio of the sides log-uniform, the place anywhere in
    the image. A side that would be longer than the image's is cut to it.
    """
    area = height * width * (SMALLEST_AREA + (1 - SMALLEST_AREA) * uniforms[0])
    ratio = ((2 * uniforms[1] - 1) * math.log(WIDEST_RATIO)).exp()
    heights = (area / ratio).sqrt().round().clamp(1, height)
    widths = (area * ratio).sqrt().round().clamp(1, width)
    tops = (uniforms[2] * (height - heights + 1)).floor()
    lefts = (uniforms[3] * (width - widths + 1)).floor()
    return torch.stack([tops, lefts, heights, widths], dim=1).long()


def strong_views(images: Tensor, generator: torch.Generator, *, mirror: bool) -> Tensor:
    """A strong view of each image; `mirror` flips half of them left to right."""
    here = generator.device
    numbers = torch.rand(11, len(images), generator=generator, device=here).to(images.device)
    order = torch.randperm(4, generator=generator, device=here).tolist()
    pixels = images.shape[-2] * images.shape[-1]
    group = max(1, GROUP // pixels if images.device.type == "cpu" else len(images))
    parts = zip(torch.split(images, group), torch.split(numbers, group, dim=1), strict=True)
    return torch.cat([_views(part, numbers, order, mirror=mirror) for part, numbers in parts])


def _views(images: Tensor, numbers: Tensor, order: list[int], *, mirror: bool) -> Tensor:
    """Views by uniform numbers `[11, n]`."""
    mirrored = (numbers[4] < 0.5) & mirror
    views = resized_crop(images, boxes(numbers[:4], *images.shape[-2:]), mirrored)
    # A factor of 1 and a turn of 0 change nothing: images that are not jittered.
    spread = (2 * numbers[7:] - 1) * (numbers[5] < JITTERED)
    factors = 1 + STRENGTH * spread[:3]
    has_colors = images.shape[1] == 3
    for change in order:
        if change == 0:
            views = adjust_brightness(views, factors[0])
        elif change == 1:
            views = adjust_contrast(views, factors[1])
        elif has_colors and change == 2:
            views = adjust_saturation(views, factors[2])
        elif has_colors:
            views = shift_hue(views, HUE * spread[3])
    if not has_colors:
        return views
    grey = (numbers[6] < GREY).to(views.dtype)
    return torch.lerp(views, luminance(views).expand_as(views), grey[:, None, None, None])


def _positions(starts: Tensor, lengths: Tensor, size: int) -> Tensor:
    """Where in the image the pixels of a view lie along one side, `[n, size]` in [-1, 1]."""
    steps = torch.arange(size, device=starts.device) + 0.5
    inside = (steps * (lengths / size)[:, None] - 0.5).clamp(min=0)
    inside = torch.minimum(inside, lengths[:, None] - 1.0)
    return 2 * (starts[:, None] + inside) / max(size - 1, 1) - 1


def _blend(images: Tensor, base: Tensor, factors: Tensor) -> Tensor:
    return torch.lerp(base.expand_as(images), images, factors[:, None, None, None]).clamp_(0, 1)
