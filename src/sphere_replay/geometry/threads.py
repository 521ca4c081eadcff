"""Work on tiles, spread over as many threads as torch was given.

Torch splits every single operation over its threads, which then spin until the last of them is
done: on a busy machine most of the time goes into waiting. Here a thread takes a whole piece of
work, runs it alone, and then the next piece, so that one which is held up delays nobody. Pieces are
the same for any number of threads and come back in order, and so results are the same too.
What lies between such pieces is many small operations: `undisturbed` runs them in one thread.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple, TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")

ALONE_UP_TO = 1024
"""Memories that one thread is done with before others would have been of help, unless features are
long."""

_SHORT_PRODUCTS = 8e8
"""Multiplications between all pairs up to which one thread is done before others have woken up."""

_AHEAD = 3
"""Pieces in hand per thread: enough that none waits, few enough to hold little memory."""

_AT_ONCE = 2
"""Threads that hand pieces out, for callers that need not wait for each other."""

_NAME = "sphere-replay"
"""What names of our threads begin with."""

_OWN = threading.local()


class _Pools(NamedTuple):
    """Threads that run torch alone: those for pieces, and those that hand pieces out."""

    pieces: ThreadPoolExecutor
    whole: ThreadPoolExecutor


def usable() -> int:
    """How many threads pieces are spread over."""
    return getattr(_OWN, "usable", 0) or torch.get_num_threads()


def in_order(
    work: Callable[[Piece], Result],
    pieces: Sequence[Piece],
    device: torch.device,
    *,
    even_one: bool = False,
) -> Iterator[Result]:
    """`work` of each piece, in the order of the pieces; on a CPU several are worked on at once.

    A single piece has all threads of torch, on whose number the last bits of a product may depend;
    with `even_one` it has one thread like any other.
    """
    threads = usable()
    if threads == 1 or device.type != "cpu" or (len(pieces) == 1 and not even_one):
        yield from map(work, pieces)
        return
    pool, task = _pools(threads).pieces, _in_our_mode(work)
    waiting = iter(pieces)
    started: deque[Future[Result]] = deque()
    try:
        for piece in waiting:
            started.append(pool.submit(task, piece))
            if len(started) == _AHEAD * threads:
                yield started.popleft().result()
        while started:
            yield started.popleft().result()
    finally:
        for future in started:
            future.cancel()


def slices(size: int, step: int) -> list[slice]:
    """So many places in pieces of at most `step`."""
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def runs_alone(size: int) -> bool:
    """Whether work on so many memories is too short to be shared."""
    return size <= ALONE_UP_TO


def undisturbed(
    work: Callable[[], Result], size: int, device: torch.device, *, dim: int = 0
) -> Result:
    """`work` outside of autocast and, on a CPU, in a thread whose operations torch does not split.

    Its pieces are still spread, unless `size` memories of `dim` features are too few.
    """
    threads = usable()
    within = getattr(_OWN, "usable", 0) > 0  # another such call
    if threads == 1 or within or device.type != "cpu":
        return _without_autocast(work, device)
    short = runs_alone(size)
    spread_over = threads if size**2 * dim > _SHORT_PRODUCTS or not short else 1

    def whole(spread_over: int) -> Result:
        _OWN.usable = spread_over
        try:
            return _without_autocast(work, device)
        finally:
            _OWN.usable = 0

    if short and _nobody_else():
        # It is done sooner than another thread would have woken up.
        if spread_over > 1:
            _pools(threads)  # whose threads begin with torch's setting
        torch.set_num_threads(1)
        try:
            return whole(spread_over)
        finally:
            torch.set_num_threads(threads)
    return _pools(threads).whole.submit(_in_our_mode(whole), spread_over).result()


def _without_autocast(work: Callable[[], Result], device: torch.device) -> Result:
    if not torch.is_autocast_enabled(device.type):
        return work()
    with torch.autocast(device.type, enabled=False):
        return work()


def _nobody_else() -> bool:
    """Whether no thread but ours could take torch's setting of the moment for its own."""
    this = threading.current_thread()
    return all(thread is this or thread.name.startswith(_NAME) for thread in threading.enumerate())


def _in_our_mode(work: Callable[[Piece], Result]) -> Callable[[Piece], Result]:
    """The same for another thread, which does not inherit these modes (nor autocast, for once)."""
    inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def task(piece: Piece) -> Result:
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            return work(piece)

    return task


@lru_cache(maxsize=1)
def _pools(threads: int) -> _Pools:
    """Torch's setting is a thread's own, but new ones inherit it."""
    ready = threading.Barrier(threads + _AT_ONCE + 1)

    def settle() -> None:
        torch.get_num_threads()  # a thread takes the common setting when it first asks for it
        torch.set_num_threads(1)
        ready.wait()

    pieces = ThreadPoolExecutor(threads, thread_name_prefix=f"{_NAME}-tiles")
    whole = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix=_NAME)
    for pool in [pieces] * threads + [whole] * _AT_ONCE:
        pool.submit(settle)
    ready.wait()
    torch.set_num_threads(threads)
    return _Pools(pieces, whole)


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_pools.cache_clear)
