"""Index of the prompt prefixes that each pod has in its prefix cache. Pure: times come in as arguments.

The gateway names prompts by their text (`prefix_chain`); pods name cached blocks by the engine's block hashes. An
answer's header maps a text to its block hashes, and a load report lists the hashes that the pod holds. Together they
are exact, no matter which gateway sent the text. Until a pod reports, the prompts sent to it are assumed to be cached.

A prompt costs O(its pieces). Memory is bounded: 131,072 pieces of text at about 200 bytes, 524,288 block hashes at
about 70, 4,096 assumed pieces for each pod at about 100.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo_gateway.routing.prefix_chain import REACH
from octavo_gateway.routing.recent_map import RecentMap
from octavo_protocol.hashing import KEY_BYTES
from octavo_protocol.load import CacheDelta
from octavo_protocol.prompt import PromptBlocks

TEXTS = 131_072
HASHES = 524_288
ASSUMED = 4096
# Bound of the pieces of answered requests whose pod has not reported since; beyond it assumed pieces only age out.
UNSETTLED = 16_384
# Upper bound of a pod's blocks.
MOST_BLOCKS = 1 << 24


class DeltaError(ValueError):
    """A pod reports an impossible change of its cache."""


@dataclass(slots=True)
class _Pod:
    """The cache of one pod: hashes that it reported, and texts sent to it since.

    `unsettled`: time of each answer and the keys of its text; `pieces`: number of these keys.
    """

    hashes: set[int] = field(default_factory=set)
    assumed: RecentMap[bool] = field(default_factory=lambda: RecentMap(ASSUMED))
    unsettled: deque[tuple[float, tuple[bytes, ...]]] = field(default_factory=deque)
    pieces: int = 0
    sequence: int = 0


class PrefixIndex:
    """The prefix caches of all pods of one gateway, by text. A pod's name is any unique string."""

    def __init__(self, texts: int = TEXTS, hashes: int = HASHES) -> None:
        self._texts: RecentMap[int] = RecentMap(texts)
        self._limit = hashes
        self._pods: dict[str, _Pod] = {}
        # One in so many block hashes is kept: the same ones for every pod and every text.
        self.stride = 1

    def __len__(self) -> int:
        """Number of known pieces of text."""
        return len(self._texts)

    @property
    def hashes(self) -> int:
        """Number of reported block hashes, over all pods."""
        return sum(len(pod.hashes) for pod in self._pods.values())

    @property
    def assumed(self) -> int:
        """Number of pieces of text assumed to be cached, over all pods."""
        return sum(len(pod.assumed) for pod in self._pods.values())

    def match(self, keys: Sequence[bytes], pods: Sequence[str]) -> list[int]:
        """Number of leading `keys` that each pod holds."""
        behind = self._texts.leading(keys)
        if not behind:
            return [0] * len(pods)
        if self.stride > 1:
            behind = _kept(behind, self.stride)
        return [self._depth(self._pods.get(pod), keys, behind) for pod in pods]

    def sent(self, pod: str, keys: Sequence[bytes]) -> tuple[bytes, ...]:
        """Assume that a pod caches a prompt sent to it; returns the keys that were not assumed there before."""
        assumed = self._pods.setdefault(pod, _Pod()).assumed
        # The start of a prompt is used last and so dropped last, because other prompts share it.
        self._texts.renew(reversed(keys), 0)
        return tuple(assumed.renew(reversed(keys), True))

    def unsent(self, pod: str, keys: Sequence[bytes]) -> None:
        """Take back the keys that `sent` returned: the pod did not compute the prompt."""
        if (known := self._pods.get(pod)) is not None:
            known.assumed.discard(keys)

    def learn(self, pod: str, keys: Sequence[bytes], size: int, prompt: PromptBlocks) -> None:
        """Record the blocks that a pod named for a text of `size` bytes.

        The token at which a piece ends is known only to the pod. So the tokens are assumed to be spread evenly over the
        text. One block is subtracted: the end of a shared prefix must not get the hash of the text after it.
        """
        if keys and prompt.marks:
            self._learn(keys, size, prompt)
        else:
            self.unsent(pod, keys)

    def finished(self, pod: str, keys: tuple[bytes, ...], now: float) -> None:
        """The answer has ended. Where the hashes of the text are known, only the pod's reports count from now on."""
        known = self._pods.get(pod)
        if known is None or not keys:
            return
        known.unsettled.append((now, keys))
        known.pieces += len(keys)
        while known.pieces > UNSETTLED:
            known.pieces -= len(known.unsettled.popleft()[1])

    def sequence(self, pod: str) -> int:
        """Sequence number after which the pod's next report is to list changes."""
        known = self._pods.get(pod)
        return known.sequence if known else 0

    def reported(self, pod: str, delta: CacheDelta, after: int, blocks: int, asked: float) -> None:
        """Apply the changes in a cache of `blocks` blocks since sequence number `after`, requested at time `asked`.

        Raises `DeltaError` if they are impossible; the next request is then for the whole cache.
        """
        known = self._pods.setdefault(pod, _Pod())
        if after != known.sequence and not delta.reset:
            return  # Changes to an unknown state: another answer overtook this one, or the pod is new.
        known.sequence = 0
        if delta.sequence < 0 or max(len(delta.added), len(delta.removed)) // KEY_BYTES > MOST_BLOCKS:
            raise DeltaError(f"cache: {len(delta.added) + len(delta.removed)} bytes at sequence {delta.sequence}")
        if delta.reset:
            known.hashes = set()
        known.hashes.difference_update(_numbers(delta.removed))
        added = _numbers(delta.added)
        stride = self.stride
        known.hashes.update(added if stride == 1 else [number for number in added if not number % stride])
        if len(known.hashes) > blocks:
            held, known.hashes = len(known.hashes), set[int]()
            raise DeltaError(f"cache: {held} keys held; the pool has {blocks} blocks")
        self._thin()
        known.sequence = delta.sequence
        self._settle(known, asked)

    def forget(self, pod: str) -> None:
        """Drop a pod that is gone, or whose name another pod has now."""
        self._pods.pop(pod, None)
        if not self._pods:
            self.stride = 1

    def _depth(self, pod: _Pod | None, keys: Sequence[bytes], behind: Sequence[int]) -> int:
        """Number of leading pieces that the pod holds, by bisection: a pod that holds a piece holds all before it."""
        if pod is None:
            return 0
        hashes, assumed = pod.hashes, pod.assumed
        low, high = 0, len(behind)
        middle = 0
        while low < high:
            if behind[middle] in hashes or keys[middle] in assumed:
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        return low

    def _learn(self, keys: Sequence[bytes], size: int, prompt: PromptBlocks) -> None:
        """Map each piece to the last named block that ends before the piece does, and the first pieces to the first."""
        marks = prompt.marks
        per_byte = prompt.tokens / max(1, size)
        numbers = _numbers(b"".join(key for _, key in marks))
        mark = len(marks) - 1
        found = []
        for index in reversed(range(len(keys))):
            tokens = REACH[index + 1] * per_byte - prompt.block_size
            while mark and marks[mark][0] > tokens:
                mark -= 1
            found.append((keys[index], numbers[mark]))
        self._texts.fill(found)

    def _thin(self) -> None:
        """Enforce the bound: halve the hashes. A remaining hash also stands for the blocks before it."""
        while self.hashes > self._limit:
            self.stride *= 2
            for pod in self._pods.values():
                pod.hashes = {number for number in pod.hashes if not number % self.stride}

    def _settle(self, pod: _Pod, asked: float) -> None:
        """Drop assumptions for requests answered before the report was requested: the report replaces them."""
        while pod.unsettled and pod.unsettled[0][0] < asked:
            keys = pod.unsettled.popleft()[1]
            pod.pieces -= len(keys)
            pod.assumed.discard(key for key in keys if self._texts.get(key))


def _kept(behind: Sequence[int], stride: int) -> list[int]:
    """Map each piece to the last kept hash before its end, and the first pieces to the first kept hash."""
    last = next((number for number in behind if number and not number % stride), 0)
    found = []
    for number in behind:
        if number and not number % stride:
            last = number
        found.append(last if number else 0)
    return found


def _numbers(data: bytes) -> tuple[int, ...]:
    """Block keys as numbers, which take less memory than bytes."""
    return struct.unpack(f"<{len(data) // KEY_BYTES}Q", data)
