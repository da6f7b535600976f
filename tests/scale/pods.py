"""What answers for all pods: a load report, the same one from every address. One pod in a hundred never answers."""

from __future__ import annotations

import asyncio
import time

from octavo_protocol import names
from octavo_protocol.load import LoadReport, encode

_REPORT = LoadReport(
    sequence=1, start_time=time.time(), model="m", block_size=32, blocks_total=1000, blocks_pinned=300,
    blocks_cached=100, running=6, waiting=0, waiting_tokens=0, uncached_prompt_tokens=0, oldest_wait=0.0,
    preemptions=0, requests=20, prompt_tokens=100, generation_tokens=100, prefix_hit_tokens=0, max_running=16,
    max_batched_tokens=512, max_waiting=64, ready=True, draining=False, cold_start=2.0,
)  # fmt: skip
_SILENT_OF = 100


class _Pod(asyncio.Protocol):
    """One connection: whatever is asked, the report is the answer."""

    answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        address = transport.get_extra_info("sockname")[0]
        self._silent = sum(map(int, address.split("."))) % _SILENT_OF == 0

    def data_received(self, data: bytes) -> None:
        if not self._silent and data.endswith(b"\r\n\r\n"):
            self._transport.write(self.answer)


async def _main() -> None:
    body = encode(_REPORT)
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    _Pod.answer = head.encode() + body
    # In the network namespace of the run this is every pod's address, and nobody else's.
    host = "0.0.0.0"  # noqa: S104
    server = await asyncio.get_running_loop().create_server(_Pod, host, names.PORT_ADMIN, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
