"""Scratch memory of the sampler and of log-probabilities: its sizes, and what each part holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import torch
import triton

T = TypeVar("T")

TILE = 2048
"""Ids of one program."""
BINS = 128
"""Ranges of weights that are counted: four for each power of two below 1. The last also holds all smaller ones."""
CANDIDATES = 8192
"""Most candidates of a row that are gathered. A row with more is searched as a whole."""


@dataclass(frozen=True, slots=True)
class SampleScratch(Generic[T]):
    """Memory for R rows of logits in some tiles: the tensors, or their shapes and types.

    - weights [R, vocab + candidates] float32: the weights of a row, then those of its candidates;
    - ids [R, candidates] int32: of the candidates;
    - tops [R, tiles] float32 and firsts [R, tiles] int32: a tile's largest logit and the lowest id that has it;
    - masses [R, tiles] float64: a tile's sum of weights that min-p keeps;
    - bins [R, tiles, BINS] int32: a tile's numbers of such weights, by their size;
    - starts [R, tiles + 1] int32: the place of a tile's first candidate, then the number of all, or -1 where top-k and
      top-p keep all;
    - cuts [R] float32: candidates are the weights not below it.
    """

    weights: T
    ids: T
    tops: T
    firsts: T
    masses: T
    bins: T
    starts: T
    cuts: T

    def __iter__(self) -> Iterator[T]:
        return (getattr(self, field.name) for field in fields(self))


Shape = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True, slots=True)
class ReportScratch(Generic[T]):
    """Memory for the log-probabilities of R rows of logits in some tiles: the tensors, or their shapes and types.

    - tops [R, tiles] float32: a tile's largest logit;
    - masses [R, tiles] float64: its sum of exponentials relative to that;
    - larger [R, tiles] int32: its number of logits larger than the token's;
    - values [R, tiles, alternatives] float32 and ids [R, tiles, alternatives] int32: its best logits.
    """

    tops: T
    masses: T
    larger: T
    values: T
    ids: T

    def __iter__(self) -> Iterator[T]:
        return (getattr(self, field.name) for field in fields(self))


def tile_of(vocab: int) -> int:
    """Ids of one program, a power of two."""
    return min(TILE, int(triton.next_power_of_2(vocab)))


def sample_shapes(
    rows: int, vocab: int, *, tile: int | None = None, candidates: int = CANDIDATES
) -> SampleScratch[Shape]:
    """Shapes and types to sample from `rows` rows of logits."""
    tiles = triton.cdiv(vocab, tile or tile_of(vocab))
    return SampleScratch(
        weights=((rows, vocab + candidates), torch.float32),
        ids=((rows, candidates), torch.int32),
        tops=((rows, tiles), torch.float32),
        firsts=((rows, tiles), torch.int32),
        masses=((rows, tiles), torch.float64),
        bins=((rows, tiles, BINS), torch.int32),
        starts=((rows, tiles + 1), torch.int32),
        cuts=((rows,), torch.float32),
    )


def report_shapes(rows: int, vocab: int, alternatives: int, *, tile: int | None = None) -> ReportScratch[Shape]:
    """Shapes and types to report on tokens of `rows` rows of logits, with at most so many alternatives."""
    tiles = triton.cdiv(vocab, tile or tile_of(vocab))
    return ReportScratch(
        tops=((rows, tiles), torch.float32),
        masses=((rows, tiles), torch.float64),
        larger=((rows, tiles), torch.int32),
        values=((rows, tiles, alternatives), torch.float32),
        ids=((rows, tiles, alternatives), torch.int32),
    )


def shapes_bytes(shapes: SampleScratch[Shape] | ReportScratch[Shape]) -> int:
    """Bytes of scratch memory."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes)
