#!/usr/bin/env python3
"""Prints the outlines of crates/plot/src/font/DejaVuSans.ttf as crates/plot/src/outlines.rs reads them; needs fontTools.

`tests/outlines.py --write` writes crates/plot/src/font/DejaVuSans.outlines; tests/it/plot.rs compares both.
"""

import pathlib
import struct
import sys

from fontTools.pens.basePen import BasePen
from fontTools.ttLib import TTFont


class Parts(BasePen):
    """The parts of all outlines: a byte for the kind, and points in half units."""

    def __init__(self, glyphs):
        super().__init__(glyphs)
        self.bytes = bytearray()

    def _part(self, kind, *points):
        halves = [2 * value for point in points for value in point]
        assert all(value == int(value) for value in halves), "a point lies between two half units"
        self.bytes += struct.pack(f"<B{len(halves)}h", kind, *map(int, halves))

    def _moveTo(self, point):
        self._part(0, point)

    def _lineTo(self, point):
        self._part(1, point)

    def _qCurveToOne(self, control, point):
        self._part(2, control, point)

    def _curveToOne(self, *points):
        raise AssertionError("a TrueType font has no cubic curves")

    def _closePath(self):
        self._part(3)


def outlines(path):
    font = TTFont(path)
    glyphs = font.getGlyphSet()
    # The glyph of a letter that the font lacks comes first.
    letters = [(0, ".notdef"), *sorted(font.getBestCmap().items())]
    head = struct.pack("<HH", font["head"].unitsPerEm, len(letters))
    parts = Parts(glyphs)
    for letter, name in letters:
        head += struct.pack("<IHI", letter, glyphs[name].width, len(parts.bytes))
        glyphs[name].draw(parts)
    return head + parts.bytes


if __name__ == "__main__":
    font = pathlib.Path(__file__).resolve().parent.parent / "crates/plot/src/font/DejaVuSans.ttf"
    read = outlines(font)
    if sys.argv[1:] == ["--write"]:
        font.with_suffix(".outlines").write_bytes(read)
    else:
        sys.stdout.buffer.write(read)
