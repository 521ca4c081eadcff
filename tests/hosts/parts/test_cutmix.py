"""CutMix: pixels say where they came from, so the box can be read off the mixed images."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from sphere_replay.hosts.parts.cutmix import Mixed, cutmix


def addressed(count: int, height: int, width: int) -> Tensor:
    """Images `[n, 3, h, w]` whose channels hold the image's number, the row and the column."""
    image, row, column = torch.meshgrid(
        torch.arange(count), torch.arange(height), torch.arange(width), indexing="ij"
    )
    return torch.stack([image, row, column], dim=1).float()


def mix(count: int, height: int, width: int, seed: int) -> tuple[Tensor, Mixed]:
    images = addressed(count, height, width)
    generator = torch.Generator().manual_seed(seed)
    return images, cutmix(images, torch.arange(count) * 10, generator)


SIDES = st.integers(1, 12)


@given(st.integers(2, 6), SIDES, SIDES, st.integers(0, 10_000))
def test_the_share_is_exactly_what_the_box_leaves(
    count: int, height: int, width: int, seed: int
) -> None:
    images, mixed = mix(count, height, width, seed)
    partners = mixed.other_labels // 10
    strangers = (partners != torch.arange(count)).nonzero().flatten()
    assume(len(strangers) > 0)
    boxes = mixed.images[strangers, 0] != images[strangers, 0]
    assert bool((boxes == boxes[0]).all())
    area = int(boxes[0].sum())
    assert mixed.share == 1 - area / (height * width)
    assert 0 <= mixed.share <= 1
    rows, columns = boxes[0].any(dim=1), boxes[0].any(dim=0)
    assert int(rows.sum()) * int(columns.sum()) == area  # a rectangle without holes
    for lines in (rows, columns):
        places = lines.nonzero().flatten()
        assert len(places) == 0 or int(places[-1] - places[0]) + 1 == len(places)


@given(st.integers(1, 6), SIDES, SIDES, st.integers(0, 10_000))
def test_every_pixel_is_of_the_image_or_its_partner_at_the_same_place(
    count: int, height: int, width: int, seed: int
) -> None:
    images, mixed = mix(count, height, width, seed)
    partners = mixed.other_labels // 10
    assert sorted(partners.tolist()) == list(range(count))
    assert mixed.labels.tolist() == [10 * number for number in range(count)]
    own = mixed.images == images
    other = mixed.images == images[partners]
    assert bool((own.all(dim=1) | other.all(dim=1)).all())
    assert torch.equal(images, addressed(count, height, width))  # the input is left alone


def test_a_single_image_is_mixed_with_itself() -> None:
    images, mixed = mix(1, 8, 8, seed=0)
    assert torch.equal(mixed.images, images)
    assert mixed.other_labels.tolist() == mixed.labels.tolist() == [0]


def test_equal_seeds_mix_alike() -> None:
    first, again = mix(5, 8, 8, seed=4)[1], mix(5, 8, 8, seed=4)[1]
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.other_labels, again.other_labels)
    assert first.share == again.share


def test_boxes_of_all_sizes_come_everywhere() -> None:
    covered = torch.zeros(8, 8)
    shares = []
    for seed in range(600):
        images, mixed = mix(2, 8, 8, seed)
        if mixed.other_labels[0] != mixed.labels[0]:
            covered += mixed.images[0, 0] != images[0, 0]
            shares.append(mixed.share)
    assert 200 < len(shares) < 400  # one of the two pairings of two images
    assert bool((covered > 10).all())
    assert min(shares) == 1 - 6 * 6 / 64  # sides are cut to even numbers below 8
    assert max(shares) == 1.0


def test_the_mean_share_is_that_of_the_published_procedure() -> None:
    """By enumeration of all centers, and a fine grid of λ, on 8 by 8 pixels."""
    expected = []
    for step in range(2000):
        half = int(8 * (1 - (step + 0.5) / 2000) ** 0.5) // 2
        sides = [min(center + half, 8) - max(center - half, 0) for center in range(8)]
        mean_side = sum(sides) / 8
        expected.append(1 - mean_side**2 / 64)
    shares = [mix(2, 8, 8, seed)[1].share for seed in range(1500)]
    # The standard deviation of a share is below 0.3, so that of the mean below 0.008.
    assert sum(shares) / len(shares) == pytest.approx(sum(expected) / len(expected), abs=0.03)
