"""Rank 0's side of adapters: cuts each for all ranks, and waits until all have prepared their part."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo_inference.common.errors import ModelError, RankLostError
from octavo_inference.core.backend import PreparedAdapter
from octavo_inference.distributed.adapter_transfer import receive_answer, send_adapter
from octavo_inference.models.adapter import Adapter
from octavo_inference.models.adapter_shard import shard_adapter
from octavo_inference.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class AdapterLink:
    """The connection for adapters to a rank, and the rank's name."""

    name: str
    connection: socket.socket

    def send(self, number: int, adapter: Adapter) -> None:
        """Send the rank its part. Raises `RankLostError`."""
        try:
            send_adapter(self.connection, number, adapter)
        except OSError as error:
            raise RankLostError(f"{self.name} ended while it received an adapter") from error
        except Exception as error:  # the rank may wait for the rest
            raise RankLostError(f"{self.name} was sent a part of an adapter: {type(error).__name__}") from error

    def failure(self, number: int) -> str:
        """Wait until the rank has prepared the part: why it could not, empty if it has. Raises `RankLostError`."""
        try:
            answer = receive_answer(self.connection)
        except (EOFError, OSError) as error:
            raise RankLostError(f"{self.name} ended while it prepared an adapter") from error
        if answer.number != number:
            raise RankLostError(f"{self.name} answered for adapter {answer.number} instead of {number}")
        return answer.failure


class AdapterSender:
    """Prepares adapters of the model `config` on all ranks, one adapter at a time. `links` are to ranks 1 and up."""

    def __init__(self, config: ModelConfig, links: Sequence[AdapterLink]) -> None:
        self._config = config
        self._links = links

    def prepare(
        self, number: int, adapter: Adapter, prepare_own: Callable[[Adapter], PreparedAdapter]
    ) -> PreparedAdapter:
        """Rank 0's part in its backend's form, once the other ranks have theirs under `number`.

        Raises `ModelError` if any rank cannot prepare its part. Others then keep theirs. Raises `RankLostError` for a
        rank that ended or is out of step: all ranks must end.
        """
        size = len(self._links) + 1
        parts = [shard_adapter(adapter, self._config, rank=rank, size=size) for rank in range(size)]
        for link, part in zip(self._links, parts[1:], strict=True):
            link.send(number, part)
        try:
            own = prepare_own(parts[0])
        finally:
            # After a failure, too: the next adapter must not get these answers.
            failures = [(link.name, link.failure(number)) for link in self._links]
        for name, failure in failures:
            if failure:
                raise ModelError(f"{name} could not prepare it: {failure}")
        return own
