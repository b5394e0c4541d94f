"""The peak of a step as a function of its size. Pure."""

from __future__ import annotations

import statistics
from typing import Dict, List, NamedTuple, Optional, Tuple

# Sizes that are kept; the smallest are dropped first.
MOST_SIZES = 256
# A term in the square of the length must leave at most this share of the line's error, so that it is kept.
_HELPS = 0.5
# The error of an extrapolation, as a share of the part of the peak that depends on the size.
_EXTRAPOLATION = 0.04
# From the median to the 90th percentile, in standard deviations, and from the median deviation to the standard one.
_P90, _DEVIATION = 1.28, 1.48


class Batch(NamedTuple):
    """A micro-batch: its tokens, or its samples where it has no tokens."""

    units: int
    samples: Optional[int] = None
    length: Optional[int] = None


class Curve(NamedTuple):
    """`fixed + per_unit * units + per_square * units * length` bytes; `error` is the median deviation of the fit."""

    fixed: float
    per_unit: float
    per_square: float
    error: float

    def at(self, batch: Batch) -> float:
        return self.fixed + batch.units * (self.per_unit + self.per_square * (batch.length or 0))


class Sizes:
    """The highest memory of micro-batches of each size, in bytes.

    Memory that the process keeps after a large batch makes a smaller one later look larger than it is: for a fit, the
    batches that were the largest until then count, and of each other size the least.
    """

    def __init__(self) -> None:
        self._least: Dict[Batch, float] = {}
        self._most: Dict[Batch, float] = {}
        self._records: Dict[Batch, float] = {}
        self._largest = -1
        self.count = 0

    def add(self, batch: Batch, peak: float) -> None:
        self.count += 1
        if batch not in self._least and len(self._least) == MOST_SIZES:
            smallest = min(self._least, key=lambda each: each.units)
            for table in (self._least, self._most, self._records):
                table.pop(smallest, None)
        self._least[batch] = min(peak, self._least.get(batch, peak))
        self._most[batch] = max(peak, self._most.get(batch, peak))
        if batch.units >= self._largest:
            self._largest = batch.units
            self._records[batch] = self._least[batch]

    def __len__(self) -> int:
        return len(self._least)

    def seen(self, batch: Batch) -> Optional[float]:
        """The highest peak of exactly this size."""
        return self._most.get(batch)

    def curve(self, fixed: Optional[float] = None) -> Optional[Curve]:
        """The fit. Of one size, the line from `fixed`, the memory of a batch of no size."""
        table = self._records if len({each.units for each in self._records}) >= 3 else self._least
        points = sorted((batch, peak) for batch, peak in table.items())
        if not points:
            return None
        slopes = [
            (high - low) / (two.units - one.units)
            for place, (one, low) in enumerate(points)
            for two, high in points[place + 1 :]
            if two.units > one.units
        ]
        if not slopes:
            batch, peak = max(points, key=lambda point: point[1])
            if fixed is None or not batch.units:
                return None
            fixed = min(fixed, peak)
            return Curve(fixed, (peak - fixed) / batch.units, 0.0, 0.0)
        slope = max(0.0, statistics.median(slopes))
        base = max(0.0, statistics.median(peak - slope * batch.units for batch, peak in points))
        line = _with_error(base, slope, 0.0, points)
        return self._bent(points, line) or line

    def _bent(self, points: List[Tuple[Batch, float]], line: Curve) -> Optional[Curve]:
        """The least squares fit with the square of the length, where it helps."""
        if len(points) < 4 or len({batch.length for batch, _ in points}) < 3 or line.error <= 0.0:
            return None
        scale = max(batch.units for batch, _ in points) or 1
        reach = max(batch.length or 0 for batch, _ in points) or 1
        rows = [(1.0, batch.units / scale, batch.units * (batch.length or 0) / scale / reach) for batch, _ in points]
        solved = _least_squares(rows, [peak for _, peak in points])
        if solved is None or min(solved) < 0.0:
            return None
        bent = _with_error(solved[0], solved[1] / scale, solved[2] / scale / reach, points)
        return bent if bent.error <= _HELPS * line.error else None


def predicted(sizes: Sizes, curve: Curve, batch: Batch) -> Tuple[float, float]:
    """The median and the 90th percentile of the peak of a batch that is at least as large as those before."""
    peak = max(curve.at(batch), sizes.seen(batch) or 0.0)
    if batch in sizes._least:
        return peak, peak
    doubt = _EXTRAPOLATION * (peak - curve.fixed) + _P90 * _DEVIATION * curve.error
    return peak, peak + doubt


def _with_error(fixed: float, slope: float, square: float, points: List[Tuple[Batch, float]]) -> Curve:
    curve = Curve(fixed, slope, square, 0.0)
    return curve._replace(error=statistics.median(abs(peak - curve.at(batch)) for batch, peak in points))


def _least_squares(rows: List[Tuple[float, float, float]], values: List[float]) -> Optional[List[float]]:
    """The normal equations of three unknowns; None where they have no unique solution."""
    matrix = [[sum(row[i] * row[j] for row in rows) for j in range(3)] for i in range(3)]
    right = [sum(row[i] * value for row, value in zip(rows, values)) for i in range(3)]
    for i in range(3):
        pivot = max(range(i, 3), key=lambda row: abs(matrix[row][i]))
        if abs(matrix[pivot][i]) < 1e-9:
            return None
        matrix[i], matrix[pivot], right[i], right[pivot] = matrix[pivot], matrix[i], right[pivot], right[i]
        for row in range(3):
            if row != i:
                factor = matrix[row][i] / matrix[i][i]
                matrix[row] = [one - factor * two for one, two in zip(matrix[row], matrix[i])]
                right[row] -= factor * right[i]
    return [right[i] / matrix[i][i] for i in range(3)]
