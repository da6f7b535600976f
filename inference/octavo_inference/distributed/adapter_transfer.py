"""Adapters on their way to another rank: a header as in `common.framing`, then the numbers of each part as they are.

They have a connection of their own, so that a long one does not delay the calls of steps. Numbers are sent from where
they are, and received where they stay. Threads that wait for a socket, or copy an array, leave the interpreter to the
steps.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo_inference.common.framing import LENGTH_BYTES, encode_frame
from octavo_inference.models.adapter import Adapter, LowRank, TokenRows


class PartShape(msgspec.Struct, frozen=True):
    """The sizes of a `LowRank`: `down` is [rank, columns], `up` [rows, rank], a bias [rows]."""

    rank: int
    columns: int
    rows: int
    biased: bool


class RowsShape(msgspec.Struct, frozen=True):
    """The sizes of `TokenRows`: ids [count], rows [count, width], a bias [count]."""

    count: int
    width: int
    biased: bool


class AdapterHeader(msgspec.Struct, frozen=True):
    """Adapter `number` of rank 0, whose parts follow in this order."""

    number: int
    digest: str
    layers: list[dict[str, PartShape]]
    embedding: PartShape | None
    lm_head: PartShape | None
    embedding_rows: RowsShape | None
    lm_head_rows: RowsShape | None


class AdapterAnswer(msgspec.Struct, frozen=True):
    """A rank has prepared an adapter; or why it could not."""

    number: int
    failure: str = ""


_decode_header = msgspec.msgpack.Decoder(AdapterHeader).decode
_decode_answer = msgspec.msgpack.Decoder(AdapterAnswer).decode


def send_adapter(connection: socket.socket, number: int, adapter: Adapter) -> None:
    """Send an adapter. Raises `OSError` if the peer has ended."""
    header = AdapterHeader(
        number,
        adapter.digest,
        [{field: _shape(part) for field, part in layer.items()} for layer in adapter.layers],
        None if adapter.embedding is None else _shape(adapter.embedding),
        None if adapter.lm_head is None else _shape(adapter.lm_head),
        None if adapter.embedding_rows is None else _rows_shape(adapter.embedding_rows),
        None if adapter.lm_head_rows is None else _rows_shape(adapter.lm_head_rows),
    )
    connection.sendall(encode_frame(header))
    for _, part in adapter.parts():
        for array in _arrays(part):
            connection.sendall(_bytes(np.ascontiguousarray(array, np.float32)))
    for own in (adapter.embedding_rows, adapter.lm_head_rows):
        if own is not None:
            for values in _row_arrays(own):
                connection.sendall(_bytes(np.ascontiguousarray(values)))


def receive_adapter(connection: socket.socket) -> tuple[int, Adapter]:
    """Receive an adapter and its number. Raises `EOFError` if the peer has closed."""
    header = _decode_header(_receive_frame(connection))
    layers = tuple(_receive_layer(connection, shapes) for shapes in header.layers)
    embedding, lm_head = (
        None if shape is None else _receive_part(connection, shape) for shape in (header.embedding, header.lm_head)
    )
    embedding_rows, lm_head_rows = (
        None if shape is None else _receive_rows(connection, shape)
        for shape in (header.embedding_rows, header.lm_head_rows)
    )
    return header.number, Adapter(header.digest, layers, embedding, lm_head, embedding_rows, lm_head_rows)


def send_answer(connection: socket.socket, answer: AdapterAnswer) -> None:
    """Send what became of an adapter. Raises `OSError` if the peer has ended."""
    connection.sendall(encode_frame(answer))


def receive_answer(connection: socket.socket) -> AdapterAnswer:
    """Receive what became of an adapter. Raises `EOFError` if the peer has closed."""
    return _decode_answer(_receive_frame(connection))


def _shape(part: LowRank) -> PartShape:
    return PartShape(part.rank, part.down.shape[1], len(part.up), part.bias is not None)


def _rows_shape(own: TokenRows) -> RowsShape:
    return RowsShape(len(own.ids), own.rows.shape[1], own.bias is not None)


def _bytes(array: NDArray[np.generic]) -> memoryview:
    """The memory of a contiguous array. Arrays without elements have no other view of bytes."""
    return array.reshape(-1).view(np.uint8).data


def _arrays(part: LowRank) -> Iterator[NDArray[np.float32]]:
    yield part.down
    yield part.up
    if part.bias is not None:
        yield part.bias


def _row_arrays(own: TokenRows) -> Iterator[NDArray[np.generic]]:
    yield own.ids
    yield own.rows
    if own.bias is not None:
        yield own.bias


def _receive_rows(connection: socket.socket, shape: RowsShape) -> TokenRows:
    bias = np.empty(shape.count, np.float32) if shape.biased else None
    own = TokenRows(np.empty(shape.count, np.int32), np.empty((shape.count, shape.width), np.float32), bias)
    for array in _row_arrays(own):
        _fill(connection, _bytes(array))
    return own


def _receive_layer(connection: socket.socket, shapes: Mapping[str, PartShape]) -> dict[str, LowRank]:
    return {field: _receive_part(connection, shape) for field, shape in shapes.items()}


def _receive_part(connection: socket.socket, shape: PartShape) -> LowRank:
    down = np.empty((shape.rank, shape.columns), np.float32)
    up = np.empty((shape.rows, shape.rank), np.float32)
    part = LowRank(down, up, np.empty(shape.rows, np.float32) if shape.biased else None)
    for array in _arrays(part):
        _fill(connection, _bytes(array))
    return part


def _receive_frame(connection: socket.socket) -> bytes:
    length = bytearray(LENGTH_BYTES)
    _fill(connection, memoryview(length))
    body = bytearray(int.from_bytes(length, "little"))
    _fill(connection, memoryview(body))
    return bytes(body)


def _fill(connection: socket.socket, buffer: memoryview) -> None:
    """Receive as many bytes as a buffer has."""
    while buffer:
        try:
            count = connection.recv_into(buffer)
        except ConnectionResetError:
            count = 0
        if not count:
            raise EOFError
        buffer = buffer[count:]
