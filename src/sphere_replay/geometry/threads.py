"""Work on tiles, spread over as many threads as torch was given.

Torch splits every single operation over its threads, which then spin until the last of them is
done: on a busy machine most of the time goes into waiting. Here a thread takes a whole piece of
work, runs it alone, and then the next piece, so that one which is held up delays nobody. Pieces are
the same for any number of threads and come back in order, and so results are the same too.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from threading import Barrier
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")

_AHEAD = 3
"""Pieces in hand per thread: enough that none waits, few enough to hold little memory."""


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
    threads = torch.get_num_threads()
    if threads == 1 or device.type != "cpu" or (len(pieces) == 1 and not even_one):
        yield from map(work, pieces)
        return
    pool = _pool(threads)
    inference = torch.is_inference_mode_enabled()  # threads do not inherit it

    def task(piece: Piece) -> Result:
        with torch.inference_mode(inference):
            return work(piece)

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


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that run torch alone. The setting is a thread's own, but new ones inherit it."""
    ready = Barrier(threads + 1)

    def settle() -> None:
        torch.get_num_threads()  # a thread takes the common setting when it first asks for it
        torch.set_num_threads(1)
        ready.wait()

    pool = ThreadPoolExecutor(threads, thread_name_prefix="sphere-tiles")
    for _ in range(threads):
        pool.submit(settle)
    ready.wait()
    torch.set_num_threads(threads)
    return pool


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
