"""Named random streams: one generator per purpose, so that no choice ever moves another.

A learner with uniform replay and the same learner with SPHERE share class order, corruption,
stream order, admission, augmentation and initialization; only the replay draws differ. They can,
because each purpose has a generator of its own, derived from `(seed, purpose)`.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

PURPOSES: tuple[str, ...] = (
    "class order",
    "corruption",
    "stream order",
    "admission",
    "replay",
    "augmentation",
    "initialization",
)
"""The purposes of a vision run. Any other text names a stream just as well: runs of language models
have some of these and others of their own, such as "dropout 12" for the thirteenth update."""


def generator_for(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """The generator of one purpose; equal arguments give equal streams on every machine.

    The seed is hashed with the purpose (SHA-256), so neighbouring seeds have nothing in common and
    two purposes never walk through the same numbers.
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"a seed must be an integer, got {seed!r}")
    if not purpose:
        raise ValueError(f"name the purpose of the stream, for example {PURPOSES[0]!r}")
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    generator = torch.Generator(device=device)
    return generator.manual_seed(int.from_bytes(digest[:8], "little"))


@contextmanager
def globally_seeded(
    generator: torch.Generator, device: torch.device | None = None
) -> Iterator[None]:
    """Inside the block, what takes no generator draws from this one: initializers and dropout.

    torch's global generator on the CPU, and that of `device` if it is a GPU, have a state derived
    from this one; their own is put back afterwards, also after an error. Build modules on the CPU
    and move them: they then start alike on all devices.
    """
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    gpus = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        # torch.manual_seed would also reseed the other accelerators, which nothing here restores.
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def branched(generator: torch.Generator) -> Iterator[None]:
    """Inside the block the generator walks a branch of its own.

    Afterwards it has moved on by one draw, however many were taken inside: what the block draws may
    depend on anything, and what comes later does not.
    """
    seed = torch.randint(2**62, (), generator=generator, device=generator.device)
    state = generator.get_state()
    generator.manual_seed(int(seed))
    try:
        yield
    finally:
        generator.set_state(state)
