"""The adapters of a rank above 0: a thread prepares what rank 0 sends, and calls put them into slots."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable

from octavo_common.failpoints import Failpoints
from octavo_inference.common.errors import DeviceLostError, ModelError
from octavo_inference.core.backend import Backend, PreparedAdapter
from octavo_inference.distributed.adapter_transfer import AdapterAnswer, receive_adapter, send_answer
from octavo_inference.models.adapter import Adapter

log = logging.getLogger("octavo.rank")


class RankAdapters:
    """The adapters that this rank's `backend` has prepared, by the number that rank 0 gave them.

    Rank 0 sends no call for an adapter before it has the answer that it is prepared. `end` is called in the thread with
    an error after which it can receive no more: the process has to end.
    """

    def __init__(
        self,
        backend: Backend,
        connection: socket.socket,
        failpoints: Failpoints,
        end: Callable[[Exception], object],
    ) -> None:
        self._backend = backend
        self._connection = connection
        self._failpoints = failpoints
        self._end = end
        self._prepared: dict[int, PreparedAdapter] = {}

    def start(self) -> None:
        """Prepare adapters in a thread, until rank 0 ends."""
        threading.Thread(target=self._receive, name="octavo-adapters", daemon=True).start()

    def load(self, slot: int, number: int | None) -> None:
        """Put a prepared adapter into a slot, or empty it."""
        self._backend.load_adapter(slot, None if number is None else self._prepared[number])

    def forget(self, number: int) -> None:
        """Free an adapter. Does nothing for one that could not be prepared."""
        self._prepared.pop(number, None)

    def _receive(self) -> None:
        try:
            while True:
                number, adapter = receive_adapter(self._connection)
                failure = self._prepare(number, adapter)
                del adapter
                send_answer(self._connection, AdapterAnswer(number, failure))
        except (EOFError, OSError):
            return  # rank 0 has ended
        except Exception as error:  # noqa: BLE001 -- it is reported there
            self._end(error)
        finally:
            # Rank 0 must not wait for an answer of this thread, whatever ended it.
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def _prepare(self, number: int, adapter: Adapter) -> str:
        """Prepare an adapter. Returns why it cannot be used, empty if it can."""
        try:
            self._failpoints.hit("rank.adapter")
            self._prepared[number] = self._backend.prepare_adapter(adapter)
        except DeviceLostError:
            raise
        except ModelError as error:
            return str(error)
        except Exception as error:
            log.exception("an adapter could not be prepared")
            first = (str(error).strip().splitlines() or ["no reason given"])[0]
            return f"{type(error).__name__}: {first}"
        return ""
