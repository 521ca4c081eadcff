"""From a configuration to a host with all its parts, each on its own random stream."""

import math

import torch

from sphere_replay.hosts import HOSTS, Host, HostParts
from sphere_replay.memory import ADMISSIONS, Memory
from sphere_replay.randomness import generator_for, globally_seeded
from sphere_replay.vision.config import ComparedBy, VisionConfig
from sphere_replay.vision.models import Classifier, FeatureMLP, build_model
from sphere_replay.vision.specs import dataset_spec


def build_host(config: VisionConfig, shape: tuple[int, int, int] | None = None) -> Host:
    """A host that has seen nothing yet.

    Args:
        config: The run.
        shape: Of the stored images; None: as the dataset has them.
    """
    views = config.views
    memory = Memory(
        config.capacity,
        ADMISSIONS[config.admission](),
        generator=generator_for(config.seed, "admission"),
        device=config.device,
    )
    parts = HostParts(
        network=_network(config, shape or dataset_spec(config.dataset).shape),
        memory=memory,
        replay=config.engine(memory, config.recipe, generator_for(config.seed, "replay")),
        views=views,
        augmentation=generator_for(config.seed, "augmentation"),
        num_classes=dataset_spec(config.dataset).num_classes,
        lr=config.lr,
        replay_batch=config.replay_batch,
        virtual_lr=config.virtual_lr,
        options=config.options,
        tasks=config.num_tasks,
        geometry=views.prepare if config.geometry == ComparedBy.ENCODER else None,
        optimizer=config.stream_optimizer,
    )
    return HOSTS[config.host](parts)


def _network(config: VisionConfig, shape: tuple[int, int, int]) -> Classifier:
    """The first weights are drawn on the CPU: they are the same on every device."""
    source = generator_for(config.seed, "initialization")
    if config.encoder and not config.network:
        classes = dataset_spec(config.dataset).num_classes
        with globally_seeded(source):
            network: Classifier = FeatureMLP(
                math.prod(shape), classes, hidden=config.hidden, head=config.head
            )
    else:
        network = build_model(
            config.dataset,
            source,
            head=config.head,
            width=config.width,
            initialization=config.initialization,
            network=config.network,
            options=config.network_options,
            shape=shape,
        )
    network.autocast = config.autocast
    if config.channels_last:
        # Convolutions pass the format of their weights on to their outputs.
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # untyped in torch
    return network.to(config.device)
