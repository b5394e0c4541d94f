"""The peak of a step as a function of its size. Pure."""

from __future__ import annotations

import collections
import itertools
import math
from typing import Callable, Deque, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

# Sizes that are kept; the smallest are dropped first.
MOST_SIZES = 256
# Lengths from which on a term in the square of the length is fitted.
LENGTHS = 3
# The error of an extrapolation, as a share of the part of the peak that depends on the size.
_EXTRAPOLATION = 0.04
# The same while the first micro-batch counts, in which libraries allocate buffers: it was up to 70 % too large.
_EARLY = 0.5
# The first micro-batch counts until so many other sizes have occurred.
FIRST_AMONG = 3
# What a step allocates for good, as a share of its activations, that can be buffers of libraries: of the random transformers of
# tests/fit/random_training.py, oneDNN and the C library took 4 to 8 MB beside activations of 25 to 180 MB.
MOST_BUFFERS = 0.25
# Micro-batches with the highest memory so far that are kept.
MOST_RISES = 16
# The share of what malloc keeps that a larger micro-batch does not use. Tensors larger than those that were freed before are
# mapped (M_MMAP_THRESHOLD adapts to them), and smaller ones fit only a part of what is free. Of 11 random transformers on the
# CPU, 0.4 to 1 of what was kept after 20 steps was still free at the peak of the longest batch: malloc keeps more until then.
UNUSED, UNUSED_P90 = 0.85, 1.05
# The 90th percentile of the difference of two runs of one program, as a share of what the host holds, which malloc causes.
NOISE = 0.03
# New sizes whose growth is known, from which on it is predicted.
GROWN = 4
# From the median to the 90th percentile, in standard deviations, and from the median deviation to the standard one.
_P90, _DEVIATION = 1.28, 1.48


def median(values: Iterable[float]) -> float:
    """As that of `statistics`, whose import takes 3 ms."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


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
    """Bytes of micro-batches, by their size: the most of each size, or the least."""

    def __init__(self, choose: Callable[[float, float], float] = max) -> None:
        self._bytes: Dict[Batch, float] = {}
        self._choose = choose

    def add(self, batch: Batch, value: float) -> None:
        if batch not in self._bytes and len(self._bytes) == MOST_SIZES:
            del self._bytes[min(self._bytes, key=lambda each: each.units)]
        self._bytes[batch] = self._choose(value, self._bytes.get(batch, value))

    def drop(self, batch: Batch) -> None:
        self._bytes.pop(batch, None)

    def __len__(self) -> int:
        return len(self._bytes)

    def seen(self, batch: Batch) -> Optional[float]:
        """The bytes of exactly this size."""
        return self._bytes.get(batch)

    def most(self) -> Optional[int]:
        return int(max(self._bytes.values())) if self._bytes else None

    def curve(self, fixed: Optional[float] = None) -> Optional[Curve]:
        """The fit; `fixed` is the memory of a batch of no size, so that a few sizes that are near each other have no other line."""
        known = list(self._bytes.items())
        if not known:
            return None
        points = sorted(known if fixed is None else [(Batch(0), fixed), *known], key=lambda point: point[0].units)
        slopes = [
            (high - low) / (two.units - one.units)
            for place, (one, low) in enumerate(points)
            for two, high in points[place + 1 :]
            if two.units > one.units
        ]
        if not slopes:
            return None
        slope = max(0.0, median(slopes))
        base = max(0.0, median(peak - slope * batch.units for batch, peak in points))
        return self._bent(known) or _with_error(base, slope, 0.0, known)

    def _bent(self, points: List[Tuple[Batch, float]]) -> Optional[Curve]:
        """With the square of the length, in which attention that keeps its scores is.

        Each token of a batch takes the same, and more by its length: the median of the slopes of all pairs of lengths, if at
        least three quarters of them are positive. A few batches in which libraries allocated buffers do not change it.
        """
        each = [(batch.length, size / batch.units) for batch, size in points if batch.length and batch.units]
        pairs = itertools.combinations(each, 2)
        slopes = sorted((two - one) / (longer - length) for (length, one), (longer, two) in pairs if longer != length)
        if len({length for length, _ in each}) < LENGTHS or slopes[len(slopes) // 4] <= 0.0:
            return None
        square = median(slopes)
        unit = median(size - square * length for length, size in each)
        return _with_error(0.0, unit, square, points) if unit > 0.0 else None


class _Rise(NamedTuple):
    """What rose above the activations at the end of forward, in a micro-batch: at least, and at most."""

    batch: Batch
    low: float
    high: float


class Footprint:
    """What a micro-batch takes on one device or on the host.

    `base` bytes are allocated before it. Its activations are a curve in its size. What rises above them in the loss and in
    backward is proportional to its size. `kept` bytes are free, and malloc keeps them: a micro-batch that is larger than
    all before can use a part of them. Each size that is new can add to `base` for good: oneDNN keeps its operations on
    bfloat16, with their buffers, by shape.
    """

    def __init__(self) -> None:
        self.base = self.kept = 0.0
        # Libraries allocate buffers in some steps, for good: the least of a size has none.
        self.activations = Sizes(min)
        self.peaks = Sizes()
        self._rises: List[_Rise] = []
        self._first: Optional[Batch] = None
        # Whether the first micro-batch has been replaced by others.
        self.corrected = False
        self._unsettled: Optional[Tuple[Batch, float, float]] = None
        # Of the steps: whether the length was new, and `base` before each that was.
        self._lengths: Set[int] = set()
        self._news: Deque[bool] = collections.deque(maxlen=MOST_SIZES)
        self._bases: Deque[float] = collections.deque(maxlen=MOST_RISES)

    def growth(self, batches: int, longest: Batch) -> float:
        """Bytes that so many further batches, up to `longest`, add to `base` for good."""
        bases = list(self._bases)
        steps = [after - before for before, after in zip(bases, bases[1:])]
        if len(steps) < GROWN or not longest.length:
            return 0.0
        late = list(self._news)[len(self._news) // 2 :]
        left = longest.length - min(self._lengths) + 1 - len(self._lengths)
        if left <= 0:
            return 0.0
        return max(0.0, median(steps)) * left * (1 - math.exp(-batches * sum(late) / len(late) / left))

    def keeps(self, resident: float) -> bool:
        """Of the host, before a step that is not measured; says whether malloc keeps more by 1 % of the whole."""
        more = resident - self.base - self.kept
        if more > 0.01 * resident:
            self.kept += more
            return True
        return False

    def settle(self, allocated: float) -> None:
        """Before the first micro-batch of a step: what was allocated for good in the step before is no activation."""
        if self._unsettled is None:
            return
        (batch, activations, begun), self._unsettled = self._unsettled, None
        grown = allocated - begun
        if 0 < grown <= MOST_BUFFERS * activations:
            self.activations.add(batch, activations - grown)
        elif grown > 0 and len(self.activations) > 1 and self.activations.seen(batch) == activations:
            # State of parameters that are used now, a copy of the weights: which part was allocated in forward is not known.
            self.activations.drop(batch)

    def forward(self, batch: Batch, begun: float, reached: float, starts: bool) -> None:
        """Allocated before and after the forward pass; `starts`: this is the first micro-batch of a step."""
        activations = max(0.0, reached - begun)
        self.activations.add(batch, activations)
        if self._first is None:
            self._first = batch
            return
        if starts:
            self._unsettled = batch, activations, begun
            self._follow(batch.length, begun)
        # What the first step allocates for good cannot be told from state and gradients.
        if not self.corrected:
            self.corrected = batch == self._first or len(self.activations) > FIRST_AMONG
            if batch != self._first and self.corrected:
                self.activations.drop(self._first)

    def _follow(self, length: Optional[int], begun: float) -> None:
        if length is None or len(self._lengths) >= MOST_SIZES:
            return
        self._news.append(length not in self._lengths)
        if self._news[-1]:
            self._bases.append(begun)
        self._lengths.add(length)

    def rose(self, batch: Batch, reached: float, resident: float, begun: float, peak: float) -> None:
        """The micro-batch had the highest memory so far. Of `resident - begun` bytes it is not known whether they were used."""
        if not batch.units:
            return
        high = max(0.0, peak - reached)
        self._rises.append(_Rise(batch, max(0.0, high - (resident - begun)), high))
        if len(self._rises) > MOST_RISES:
            self._rises.remove(max(self._rises, key=lambda each: (each.high - each.low) / each.batch.units))

    def read_code(self, size: float) -> None:
        """Of the host: so much of what rose in the first step is code that ran the first time, and files."""
        if self._rises:
            batch, low, high = self._rises[-1]
            self._rises[-1] = _Rise(batch, max(0.0, low - size), max(0.0, high - size))

    def rise(self) -> Optional[Tuple[float, float]]:
        """Bytes that rise above the activations: per token or sample, and per token and token of the length."""
        known = self._rises
        if not known:
            return None
        low = max(known, key=lambda each: each.low / each.batch.units)
        high = min(known, key=lambda each: each.high / each.batch.units)
        least, most = low.low / low.batch.units, high.high / high.batch.units
        if least <= most:
            return (least + most) / 2, 0.0
        # It is not proportional. With the length, it grows where scores of attention are computed again in backward.
        longer, length = low.batch.length or 0, high.batch.length or 0
        if longer > length > 0:
            square = min((least - most) / (longer - length), least / longer)
            return least - square * longer, square
        # The larger one is nearer to what is still to come.
        return (least if low.batch.units > high.batch.units else most), 0.0

    def curve(self, more: float) -> Optional[Curve]:
        """The peak by the size, when `more` bytes will be allocated before."""
        base = self.base + more
        rise = self.rise()
        if rise is None or not len(self.activations):
            return self.peaks.curve(base)
        curve = self.activations.curve(0.0)
        if curve is None:
            return None
        per_unit, per_square = curve.per_unit + rise[0], curve.per_square + rise[1]
        return curve._replace(fixed=base + UNUSED * self.kept + curve.fixed, per_unit=per_unit, per_square=per_square)

    @property
    def spread(self) -> float:
        """From the median to the 90th percentile: of the host, what malloc does with the memory that it keeps."""
        return max((UNUSED_P90 - UNUSED) * self.kept, NOISE * self.base) if self.kept else 0.0


def predicted(curve: Curve, batch: Batch, exact: Optional[float], early: bool = False) -> Tuple[float, float]:
    """The median and the 90th percentile of the peak; `exact` is the peak of a batch of the same size."""
    if exact is not None:
        return exact, exact
    peak = curve.at(batch)
    return peak, peak + (_EARLY if early else _EXTRAPOLATION) * (peak - curve.fixed) + _P90 * _DEVIATION * curve.error


def _with_error(fixed: float, slope: float, square: float, points: List[Tuple[Batch, float]]) -> Curve:
    curve = Curve(fixed, slope, square, 0.0)
    return curve._replace(error=median(abs(peak - curve.at(batch)) for batch, peak in points))
