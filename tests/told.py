"""A progress bar that keeps what it is told."""

from benchmarks.rendering import Progress


class Told(Progress):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, int, str]] = []

    def show(self, done: int, total: int, label: str) -> None:
        self.told.append((done, total, label))
