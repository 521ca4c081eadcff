"""Views of stored images: scaled and normalized, for training also cropped and flipped.

All of it works on whole batches on the tensor's own device. Images are stored as uint8 and
unaugmented; a fresh view is made at every use. Random numbers are drawn where the generator
lives, so a run on an accelerator sees the same views as a run on the CPU.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from sphere_replay.vision.specs import dataset_spec
from sphere_replay.vision.strong_views import strong_views

CROP_PADDING = 4
FEATURE_NORM = 10.0
"""Mean norm of encoded training examples: about that of MNIST's images, on which the MLP and its
learning rates are known to work."""


def crop(images: Tensor, offsets: Tensor, padding: int) -> Tensor:
    """Cut a window of the original size out of each zero-padded image `[n, c, h, w]`.

    `offsets` `[n, 2]` holds the window's top and left in 0..2*padding; `padding` itself is the
    unmoved image.
    """
    count, _, height, width = images.shape
    padded = functional.pad(images, [padding] * 4)
    # Every window of every image as a view, [n, c, 2p+1, 2p+1, h, w]; one of each is copied.
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    each = torch.arange(count, device=images.device)
    return windows[each, :, offsets[:, 0], offsets[:, 1]]


def flip(images: Tensor, chosen: Tensor) -> Tensor:
    """Mirror the `chosen` (bool `[n]`) of the images `[n, c, h, w]` left to right."""
    return torch.where(chosen[:, None, None, None], images.flip(-1), images)


def random_crop(images: Tensor, generator: torch.Generator, padding: int = CROP_PADDING) -> Tensor:
    """A window per image, uniform over all positions."""
    offsets = torch.randint(
        2 * padding + 1, (len(images), 2), generator=generator, device=generator.device
    )
    return crop(images, offsets.to(images.device), padding)


def random_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image mirrored with probability 1/2."""
    chosen = torch.rand(len(images), generator=generator, device=generator.device) < 0.5
    return flip(images, chosen.to(images.device))


@dataclass(frozen=True)
class Pipeline:
    """From stored uint8 images `[n, c, h, w]` to the float32 input of a network."""

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    padding: int = 0
    """Padding of the random crop; 0: no crop."""
    flip: bool = False

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std belong together: give both or neither")
        if self.padding < 0:
            raise ValueError(f"padding must be 0 (no crop) or more, got {self.padding}")

    @property
    def augments(self) -> bool:
        """Whether views for training are others than the plain one."""
        return self.padding > 0 or self.flip

    def prepare(self, images: Tensor) -> Tensor:
        """The view for evaluation and scoring: (x/255 - mean) / std."""
        if images.dtype != torch.uint8:
            raise TypeError(
                f"images must be stored as uint8, got {images.dtype}: this view would scale them "
                "a second time"
            )
        return self._normalize(images.to(torch.float32).div_(255))

    def augment(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The view for training: random crop, random flip, then as in `prepare`."""
        # Padding is black because it happens before normalization.
        if self.padding:
            images = random_crop(images, generator, self.padding)
        if self.flip:
            images = random_flip(images, generator)
        return self.prepare(images)

    def strengthen(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The view for contrastive terms; mirrored only if training views are."""
        views = strong_views(images.to(torch.float32).div_(255), generator, mirror=self.flip)
        return self._normalize(views)

    def _normalize(self, scaled: Tensor) -> Tensor:
        """In place."""
        if self.mean is None or self.std is None:
            return scaled
        mean = torch.tensor(self.mean, device=scaled.device)[:, None, None]
        std = torch.tensor(self.std, device=scaled.device)[:, None, None]
        return scaled.sub_(mean).div_(std)

    def without_augmentation(self) -> "Pipeline":
        """The same constants, with training views equal to evaluation views."""
        return replace(self, padding=0, flip=False)


@dataclass(frozen=True)
class FeatureViews:
    """Features of a frozen encoder are network inputs already: every view is the plain one."""

    norm: float = FEATURE_NORM
    """What they were scaled to; part of a run's identity."""

    @property
    def augments(self) -> bool:
        """No."""
        return False

    def prepare(self, images: Tensor) -> Tensor:
        """The features."""
        return images

    def augment(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The features: augmentation would have to come before the encoder."""
        return images

    def strengthen(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The features."""
        return images


def pipeline(name: str) -> Pipeline:
    """The views of a dataset: its constants, and crops and flips where photographs are shown."""
    spec = dataset_spec(name)
    return Pipeline(
        mean=spec.mean,
        std=spec.std,
        padding=CROP_PADDING if spec.augmented else 0,
        flip=spec.augmented,
    )
