import pytest
import torch
from torch import nn

from sphere_replay.randomness import PURPOSES, branched, generator_for, globally_seeded


def numbers(generator: torch.Generator) -> list[float]:
    return torch.rand(4, generator=generator, dtype=torch.float64).tolist()


def test_equal_arguments_give_equal_streams() -> None:
    assert numbers(generator_for(3, "replay")) == numbers(generator_for(3, "replay"))


def test_the_stream_of_a_seed_is_pinned() -> None:
    # Published numbers depend on it: a change here is a change of every run.
    assert generator_for(0, "class order").initial_seed() == 18271438815053765284
    assert torch.randperm(10, generator=generator_for(0, "class order")).tolist() == [
        5,
        7,
        1,
        8,
        4,
        9,
        6,
        2,
        0,
        3,
    ]


def test_purposes_and_seeds_are_independent() -> None:
    drawn = [
        tuple(numbers(generator_for(seed, purpose))) for seed in range(50) for purpose in PURPOSES
    ]
    assert len(set(drawn)) == len(drawn)


def test_drawing_from_one_purpose_leaves_another_alone() -> None:
    replay, admission = generator_for(0, "replay"), generator_for(0, "admission")
    numbers(replay)
    assert numbers(admission) == numbers(generator_for(0, "admission"))


def test_a_seed_is_an_integer_and_a_purpose_has_a_name() -> None:
    with pytest.raises(TypeError, match="seed must be an integer, got True"):
        generator_for(True, "replay")
    with pytest.raises(TypeError, match=r"got 1\.5"):
        generator_for(1.5, "replay")  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(ValueError, match="name the purpose"):
        generator_for(1, "")


def weights(generator: torch.Generator) -> torch.Tensor:
    with globally_seeded(generator):
        return nn.Linear(5, 3).weight.detach()


def test_initialization_depends_on_its_generator_only() -> None:
    first = weights(generator_for(0, "initialization"))
    torch.rand(7)
    assert torch.equal(first, weights(generator_for(0, "initialization")))
    assert not torch.equal(first, weights(generator_for(1, "initialization")))


def test_two_modules_of_one_generator_differ() -> None:
    generator = generator_for(0, "initialization")
    assert not torch.equal(weights(generator), weights(generator))


def test_initialization_leaves_the_global_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    weights(generator_for(0, "initialization"))
    assert torch.equal(torch.get_rng_state(), before)


def fail_while_building() -> None:
    with globally_seeded(generator_for(0, "initialization")):
        torch.rand(3)
        raise RuntimeError("broken module")


def test_the_global_generator_is_restored_after_an_error() -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="broken module"):
        fail_while_building()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_seeded_with_the_rest_and_restored() -> None:
    gpu = torch.device("cuda")
    before, drawn = torch.cuda.get_rng_state(gpu), []
    for _ in range(2):
        with globally_seeded(generator_for(0, "programs"), gpu):
            drawn.append(torch.rand(3, device=gpu))
        torch.rand(3, device=gpu)
    assert torch.equal(*drawn)
    torch.cuda.set_rng_state(before, gpu)
    with globally_seeded(generator_for(0, "programs"), gpu):
        torch.rand(3, device=gpu)
    assert torch.equal(torch.cuda.get_rng_state(gpu), before)


@pytest.mark.parametrize("draws", [0, 1, 100])
def test_after_a_branch_a_generator_has_moved_by_one_draw(draws: int) -> None:
    generator, other = generator_for(0, "augmentation"), generator_for(0, "augmentation")
    with branched(generator):
        inside = torch.rand(draws, generator=generator)
    torch.randint(2**62, (), generator=other)
    assert torch.equal(generator.get_state(), other.get_state())
    assert draws == 0 or not torch.equal(inside, torch.rand(draws, generator=generator))


def test_two_branches_differ_and_each_can_be_walked_again() -> None:
    def walk(generator: torch.Generator) -> list[float]:
        numbers = []
        for _ in range(2):
            with branched(generator):
                numbers.append(float(torch.rand((), generator=generator)))
        return numbers

    first, second = walk(generator_for(0, "augmentation"))
    assert first != second
    assert [first, second] == walk(generator_for(0, "augmentation"))
