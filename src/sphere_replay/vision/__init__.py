"""Images: datasets, label noise, class-incremental streams, views and networks.

Importing this package needs torch alone; decoding images needs the `vision` extra.
"""

from sphere_replay.errors import DataError
from sphere_replay.vision.datasets import (
    DATASETS,
    DatasetSpec,
    ImageData,
    dataset_spec,
    load_images,
)
from sphere_replay.vision.models import MLP, Classifier, CosineHead, Head, ResNet18, build_model
from sphere_replay.vision.noise import NoiseKind, corrupt
from sphere_replay.vision.stream import ClassStream, SplitBy, build_stream
from sphere_replay.vision.transforms import Pipeline, pipeline

__all__ = [
    "DATASETS",
    "MLP",
    "ClassStream",
    "Classifier",
    "CosineHead",
    "DataError",
    "DatasetSpec",
    "Head",
    "ImageData",
    "NoiseKind",
    "Pipeline",
    "ResNet18",
    "SplitBy",
    "build_model",
    "build_stream",
    "corrupt",
    "dataset_spec",
    "load_images",
    "pipeline",
]
