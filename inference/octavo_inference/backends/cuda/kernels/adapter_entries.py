"""How adapters lie in memory. Imports nothing, for memory sums on machines without GPU libraries.

An adapter is one run of numbers, as long as its ranks need, and an entry of integers for each matrix:

    entry    [down, ranks, bias, biased | first, ranks, up, - | first, ranks, up, - | ...]
              of the whole matrix         of each of its parts
    numbers  down [ranks, columns]: those of all parts, one below the other; of the embedding [columns, ranks]
             up [rows, ranks] of each part
             bias [rows] of all parts

Places in the run, and ranks, count in `UNIT`s of 8 numbers, 16 bytes of bfloat16: so a kernel loads 16 bytes at once
whatever the rank is. Ranks are padded to that with zeros.
"""

UNIT = 8
HEAD, PART = 4, 4
"""Integers of an entry for the matrix, and for each part."""
MOST_PARTS = 6  # inputs of a gated delta net
ENTRY = HEAD + MOST_PARTS * PART
TILE, TILE_FIELDS = 128, 4
"""Rows of `up` in a tile of outputs, and the integers that describe a tile."""
