"""A client of the gateway: streamed chats, one or many at once, with a check that each stream is complete."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(slots=True)
class Stream:
    """The result of one streamed request. Complete: one finish reason, then `[DONE]`, and no error event."""

    status: int = 0
    text: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str | None = None
    done: bool = False
    error: str | None = None
    first_token_seconds: float | None = None
    seconds: float = 0.0
    comments: int = 0
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True if the stream is complete."""
        return self.status == 200 and self.done and self.finish_reason is not None and self.error is None


def chat(
    url: str,
    body: Mapping[str, object],
    *,
    timeout: float = 120.0,
    on_text: Callable[[str], None] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Stream:
    """POST /v1/chat/completions with stream=true to the gateway at `url`; errors of the server do not raise."""
    parts = urlsplit(url)
    stream = Stream()
    begin = time.monotonic()
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout)
    try:
        payload = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
        sent = {"Content-Type": "application/json", **(headers or {})}
        connection.request("POST", "/v1/chat/completions", payload, sent)
        response = connection.getresponse()
        stream.status = response.status
        stream.headers = {name.lower(): value for name, value in response.getheaders()}
        if response.status != 200:
            stream.error = response.read().decode(errors="replace")
        else:
            _read_events(response, stream, begin, on_text)
    except (OSError, http.client.HTTPException) as error:
        stream.error = f"{type(error).__name__}: {error}"
    finally:
        stream.seconds = time.monotonic() - begin
        connection.close()
    return stream


def _read_events(
    response: http.client.HTTPResponse, stream: Stream, begin: float, on_text: Callable[[str], None] | None
) -> None:
    for raw in response:
        line = raw.decode().rstrip("\r\n")
        if line.startswith(":"):
            stream.comments += 1
        if not line.startswith("data: "):
            continue
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            stream.done = True
            return
        event = json.loads(data)
        if "error" in event:
            stream.error = event["error"]["message"]
            return
        if usage := event.get("usage"):
            stream.tokens, stream.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
            stream.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        for choice in event["choices"]:
            piece = choice["delta"].get("content") or ""
            if piece and stream.first_token_seconds is None:
                stream.first_token_seconds = time.monotonic() - begin
            stream.text += piece
            stream.finish_reason = choice["finish_reason"] or stream.finish_reason
            if piece and on_text:
                on_text(piece)


class Load:
    """Clients that each send chats one after the other until stopped; a started chat is always read to its end.

    Bounded: at most `requests_each` chats per client. `results` grows as chats end.
    """

    def __init__(self, url: str, bodies: Sequence[Mapping[str, object]], *, requests_each: int, timeout: float) -> None:
        self.results: list[Stream] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._client, args=(url, body, requests_each, timeout), daemon=True)
            for body in bodies
        ]
        for thread in self._threads:
            thread.start()

    def _client(self, url: str, body: Mapping[str, object], requests: int, timeout: float) -> None:
        for _ in range(requests):
            if self._stop.is_set():
                return
            self.results.append(chat(url, body, timeout=timeout))

    @property
    def running(self) -> int:
        """The number of clients that have not ended."""
        return sum(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Stop sending new chats; the running ones continue."""
        self._stop.set()

    def join(self, timeout: float) -> list[Stream]:
        """Waits for the running chats. Raises TimeoutError if some do not end within `timeout` seconds."""
        end = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if self.running:
            raise TimeoutError(f"{self.running} of {len(self._threads)} streams did not end within {timeout:.0f} s")
        return self.results
