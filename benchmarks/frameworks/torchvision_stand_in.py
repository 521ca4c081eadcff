"""A stand-in for torchvision, where there is none: enough of it for Avalanche to be imported.

Avalanche imports torchvision for datasets and networks that nobody here asks for. Wheels of it that
fit a CPU-only torch are not everywhere, so every name it might want is a placeholder that says so
when it is used, but for three: `transforms.Compose`, `transforms.Normalize` and `datasets.MNIST`,
which reads our own copy of the images. With these Avalanche's own `SplitMNIST` works.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from sphere_replay.vision.datasets import load_images


class Compose:
    """One transform after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, x: Any) -> Any:
        """The result of the last."""
        for transform in self.transforms:
            x = transform(x)
        return x


class Normalize:
    """Channels of mean 0 and standard deviation 1."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in (mean, std))

    def __call__(self, x: Tensor) -> Tensor:
        """Of an image `[c, h, w]`."""
        return (x - self.mean) / self.std


class MNIST:
    """The images of `$SPHERE_DATA`, in the attributes that the real class has."""

    def __init__(
        self, root: str, train: bool = True, transform: Any = None, target_transform: Any = None,
        download: bool = False,
    ) -> None:  # fmt: skip
        found = load_images("mnist", progress=False)
        images, labels = (
            (found.train_images, found.train_labels)
            if train
            else (found.test_images, found.test_labels)
        )
        self.root, self.train = root, train
        self.data, self.targets = images[:, 0], labels
        self.transform, self.target_transform = transform, target_transform

    def __len__(self) -> int:
        return len(self.targets)


_REAL = {"Compose": Compose, "Normalize": Normalize, "MNIST": MNIST}


class _Module(ModuleType):
    __path__: list[str] = []  # noqa: RUF012  # a package: its submodules are looked for

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _REAL.get(name) or _placeholder(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


def _placeholder(name: str) -> type:
    """Can be made, because default arguments are, but not used."""

    def accept(self: object, *arguments: object, **options: object) -> None:
        pass

    def refuse(self: object, *arguments: object, **options: object) -> None:
        raise RuntimeError(f"{name} is a placeholder: this needs a real torchvision")

    members = {"__init__": accept, "__call__": refuse, "__getitem__": refuse, "__len__": refuse}
    return type(name.rpartition(".")[2], (), members)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def install() -> bool:
    """Stand in for torchvision unless there is one; whether it was needed."""
    if importlib.util.find_spec("torchvision") is not None:
        return False
    sys.meta_path.append(_Finder())
    return True
