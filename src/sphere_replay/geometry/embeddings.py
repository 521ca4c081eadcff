"""Features as points on the unit sphere.

Rows are normalised in float64, so that points which differ in length alone coincide to the last
digit (but for `seen_from`, where no digit depends on it), and block by block on demand, so that a
large memory needs no second copy of its features.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import normalize, threshold

from sphere_replay.geometry.scratch import working
from sphere_replay.geometry.threads import in_order, slices
from sphere_replay.numeric import accumulation_dtype, spread

Result = TypeVar("Result")

VANISHING = 1e-12
"""A centred row shorter than this is rounding noise around the mean: it stays at the origin."""

_CHUNK_ELEMENTS = 1 << 18
"""Numbers that are measured and moved at a time: threads that share shorter work wait for each
other."""
_FEW, _SAMPLE = 64, 256
_NEAR = 0.5
"""Squared length of a mean from which on unit rows count as near to it: 1 - this is their mean
squared distance."""
_LONG = 512
"""Features from which on float32 adds their squares up too coarsely."""
_SHORTEST, _LONGEST = 1e-15, 1e15
"""Lengths of rows whose squares float32 can add up."""
_HELD_ELEMENTS = 1 << 22
"""Smaller sets are normalised once and held, which costs at most 32 MiB."""


class UnitRows:
    """Rows of `features` `[m, d]` over their l2 norm, optionally centred and normalised again.

    A zero row has no direction and stays at the origin.
    """

    def __init__(self, features: Tensor, *, center: bool = False) -> None:
        self._features = features.detach()
        self._precision = accumulation_dtype(features.device)
        self._held: Tensor | None = None
        self._mean: Tensor | None = None
        if center:
            total = torch.zeros(features.shape[1], dtype=self._precision, device=features.device)
            for part in self.of_units(lambda rows, block: block.sum(dim=0)):
                total += part
            self._mean = total / len(features)

    def __len__(self) -> int:
        return len(self._features)

    @property
    def held_bytes(self) -> int:
        """What these rows may come to occupy themselves."""
        small = self._features.numel() <= _HELD_ELEMENTS
        return self._features.numel() * self._precision.itemsize if small else 0

    @property
    def features(self) -> Tensor:
        """The rows as they were given."""
        return self._features

    @property
    def centered(self) -> bool:
        """Whether the mean of all rows has been subtracted."""
        return self._mean is not None

    def chosen(self, rows: Tensor) -> Tensor:
        """The unit rows of these numbers, in float64."""
        return self._unit(rows)

    def rows(self, rows: slice | Tensor) -> Tensor:
        """The unit rows `[len(rows), d]` in float64; not to be written to."""
        if self.held_bytes == 0:
            return self._unit(rows)
        if self._held is None:
            self._held = self._unit(slice(None))
        return self._held[rows]

    def _working(self, rows: slice) -> Tensor:
        shape = len(range(len(self))[rows]), self._features.shape[1]
        return working("unit rows", shape, self._precision, self._features.device)

    def _unit(
        self, rows: slice | Tensor, out: Tensor | None = None, *, exact: bool = True
    ) -> Tensor:
        features = self._features[rows]
        if out is None:
            out = torch.empty(features.shape, dtype=self._precision, device=features.device)
        block = out.copy_(features)
        if features.dtype == self._precision:
            # The squares of these could overflow or vanish: measure each row by its largest entry.
            largest = block.abs().amax(dim=1, keepdim=True)
            block.div_(torch.where(largest > 0, largest, 1.0))
        block = _over_norms(block, exact=exact)
        if self._mean is None:
            return block
        return _over_norms(block.sub_(self._mean), VANISHING, exact=exact)

    def rough_center(self) -> Tensor:
        """About the mean row `[d]`: good enough as an origin, on which no distance depends."""
        few = self._features[:: 1 + len(self) // _FEW].to(self._precision)
        unit = normalize(few, dim=1)
        if self._mean is not None:
            unit = normalize(unit - self._mean, dim=1)
        return unit.mean(dim=0)

    def sample(self) -> Tensor:
        """About 256 unit rows in float64."""
        return self._unit(spread(len(self), _SAMPLE).to(self._features.device))

    def of_units(self, work: Callable[[slice, Tensor], Result]) -> list[Result]:
        """`work` on all unit rows in float64, up to a rounding, a block at a time.

        It may write to the block, whose memory is the next one's, too.
        """
        return self._of_blocks(
            lambda rows: work(rows, self._unit(rows, self._working(rows), exact=False))
        )

    def all(self, dtype: torch.dtype) -> Tensor:
        """Every unit row `[m, d]` in the given precision."""
        points = torch.empty(self._features.shape, dtype=dtype, device=self._features.device)

        def write(rows: slice, block: Tensor) -> None:
            points[rows] = block

        self.of_units(write)
        return points

    def seen_from(self, origin: Tensor) -> Tensor:
        """Every unit row minus `origin` `[d]`, their mean or so, in float32: `[m, d]`.

        In float64 until the origin is subtracted: rows near to it would lose digits. Where most are
        far, float32 loses none that matter and takes a fifth of the time.
        """
        dtype = torch.float32
        points = torch.empty(self._features.shape, dtype=dtype, device=self._features.device)
        shift = -origin.to(dtype)
        # Points of a single number are 1 and -1, on which no rounding may show.
        plain = self._features.dtype == dtype and not self.centered and points.shape[1] > 1
        far = float(origin.dot(origin)) < _NEAR
        in_float32 = plain and far and points.device.type == "cpu"

        def write(rows: slice) -> None:
            if in_float32:
                features = self._features[rows]
                norms = lengths(features)
                shortest, longest = norms.aminmax()
                if float(shortest) > _SHORTEST and float(longest) < _LONGEST:
                    torch.addcmul(shift, features, norms.reciprocal_(), out=points[rows])
                    return
            points[rows] = self._unit(rows, self._working(rows), exact=False).sub_(origin)

        self._of_blocks(write)
        return points

    def _of_blocks(self, work: Callable[[slice], Result]) -> list[Result]:
        """`work` on all rows, a block at a time."""
        size, dim = self._features.shape
        blocks = slices(size, max(1, _CHUNK_ELEMENTS // dim))
        return list(in_order(work, blocks, self._features.device))


def lengths(rows: Tensor) -> Tensor:
    """The l2 norms `[n, 1]` of rows `[n, d]`, in their precision, good to a few roundings of it."""
    # Squares are added nearly one after the other, and so the longer a row the coarser the sum.
    long = rows.shape[1] > _LONG
    precision = accumulation_dtype(rows.device) if long else rows.dtype
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=precision)
    return norms.to(rows.dtype)


def _over_norms(rows: Tensor, floor: float = 0.0, *, exact: bool) -> Tensor:
    """The rows, in place, over their l2 norms; those that are no longer than `floor` become zero.

    With a rounding more than exactly it takes a quarter of the time.
    """
    norms = threshold(torch.linalg.vector_norm(rows, dim=1, keepdim=True), floor, torch.inf)
    single = rows.shape[1] == 1  # 1 and -1, on which no rounding may show
    return rows.div_(norms) if exact or single else rows.mul_(norms.reciprocal_())


def center_embeddings(features: Tensor) -> Tensor:
    """l2-normalise, subtract the mean row, l2-normalise again: `[m, d]` -> `[m, d]`.

    Code RL does this once, over all training prompts, before training starts.
    """
    dtype = torch.promote_types(features.dtype, torch.float32)
    return UnitRows(features, center=True).all(dtype)
