"""Which algorithm computes a convolution: a decision per layer, by estimate until it has been measured."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["ALGORITHMS", "Picker", "Site", "estimate_algorithm", "in_name", "only_direct"]

ALGORITHMS = ("direct", "winograd2", "winograd4")
"""`direct`, and Winograd's F(2x2, 3x3) and F(4x4, 3x3)."""

# Rates of one core for the estimate; only their proportions count. Weights come from memory: a model's do not stay
# in a cache.
_FLOPS_PER_S, _WEIGHT_BYTES_PER_S, _TRANSFORM_S = 150e9, 12e9, 4e-9
# Winograd has to promise this much, since an estimate is all there is.
_GAIN = 1.15


@dataclass(frozen=True)
class Site:
    """A convolution that several algorithms can compute: 3 x 3 taps, stride 1, no dilation, one group, float32.

    Attributes:
        batch, channels, height, width: of the input.
        filters: output channels.
        pads: top, left, bottom, right.
    """

    batch: int
    channels: int
    height: int
    width: int
    filters: int
    pads: tuple[int, int, int, int]

    @property
    def text(self) -> str:
        """The site in one word, part of its kernels' names: equal words are the same work but for what follows it."""
        pads = str(self.pads[0]) if len(set(self.pads)) == 1 else "x".join(map(str, self.pads))
        return f"n{self.batch}c{self.channels}h{self.height}w{self.width}o{self.filters}p{pads}_conv3x3"

    @staticmethod
    def parse(text: str) -> Site:
        """Rebuild a site from its text."""
        found = re.fullmatch(r"n(\d+)c(\d+)h(\d+)w(\d+)o(\d+)p([\dx]+)_conv3x3", text)
        if found is None:
            raise ValueError(f"{text!r} names no convolution")
        *dims, pads = found.groups()
        four = [int(p) for p in pads.split("x")] * (4 if "x" not in pads else 1)
        batch, channels, height, width, filters = (int(d) for d in dims)
        return Site(batch, channels, height, width, filters, (four[0], four[1], four[2], four[3]))

    @property
    def flops(self) -> float:
        """Operations of direct convolution, by which any algorithm is rated."""
        rows, cols = self.out
        return 18.0 * self.channels * self.filters * rows * cols * self.batch

    @property
    def out(self) -> tuple[int, int]:
        """Rows and columns of the output."""
        top, left, bottom, right = self.pads
        return self.height + top + bottom - 2, self.width + left + right - 2

    def seconds(self, algorithm: str) -> float:
        """Estimate the time of one core: multiplications, weights from memory, transforms."""
        rows, cols = self.out
        if algorithm == "direct":
            flops, sides, transform = self.flops, 9, 0.0
        else:
            tile = int(algorithm[-1])
            tiles, sides = self.batch * -(-rows // tile) * -(-cols // tile), (tile + 2) ** 2
            flops = 2.0 * sides * tiles * self.channels * self.filters
            transform = sides * tiles * (self.channels + self.filters) / 16 * _TRANSFORM_S
        weights = 4.0 * sides * self.channels * self.filters
        return flops / _FLOPS_PER_S + weights / _WEIGHT_BYTES_PER_S + transform


Picker = Callable[[Site], str]


def estimate_algorithm(site: Site) -> str:
    """Return the algorithm of the least estimated time, direct convolution unless another promises a clear gain."""
    best = min(ALGORITHMS, key=site.seconds)
    return best if site.seconds("direct") > _GAIN * site.seconds(best) else "direct"


def only_direct(site: Site) -> str:
    """Return "direct" whatever the site: for those who want no digit of error that an algorithm adds."""
    return "direct"


_NAME = re.compile(rf"({'|'.join(ALGORITHMS)})_(n\d+c\d+h\d+w\d+o\d+p[\dx]+_conv3x3)")


def in_name(kernel_name: str) -> tuple[str, str]:
    """Return algorithm and site's text of a kernel by its name, or two empty strings."""
    found = _NAME.search(kernel_name)
    return (found.group(1), found.group(2)) if found else ("", "")
