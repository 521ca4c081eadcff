"""Memory that is used again is nobody else's in the meantime."""

from concurrent.futures import ThreadPoolExecutor

import torch

from sphere_replay import allocate
from sphere_replay.geometry import build_geometry
from sphere_replay.geometry.scratch import LARGEST, Lender, working
from tensors import seeded

CPU = torch.device("cpu")


def test_what_is_lent_comes_back_and_not_before() -> None:
    lender = Lender()
    first, second = (lender.tensor((20, 30), torch.float32, CPU) for _ in range(2))
    assert first.shape == (20, 30)
    assert first.data_ptr() != second.data_ptr()
    places = {first.data_ptr(), second.data_ptr()}
    assert Lender().tensor((5, 5), torch.float32, CPU).data_ptr() not in places
    del lender
    later = Lender()
    assert later.tensor((4, 4), torch.float32, CPU).data_ptr() in places


def test_a_thread_has_memory_of_its_own_for_each_purpose() -> None:
    def place(purpose: str, dtype: torch.dtype = torch.float32) -> int:
        return working(purpose, (3, 4), dtype, CPU).data_ptr()

    assert place("one") == place("one")
    assert len({place("one"), place("two"), place("one", torch.float64)}) == 3
    with ThreadPoolExecutor(1) as other:
        assert other.submit(place, "one").result() != place("one")
    assert working("one", (LARGEST + 1,), torch.float32, CPU).data_ptr() != place("one")


def test_geometries_that_live_together_do_not_disturb_each_other() -> None:
    features = [torch.randn(100, 8, generator=seeded(seed)) for seed in range(3)]
    increments = torch.randn(100, generator=seeded(9))
    alone = [allocate(increments, each).weights for each in features]
    together = [build_geometry(each) for each in features]
    for _ in range(2):
        found = [allocate(increments, geometry).weights for geometry in together]
        assert all(torch.equal(*pair) for pair in zip(alone, found, strict=True))
