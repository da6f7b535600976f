"""Which pod has how much of a prompt cached. Pure: times come in as arguments.

Prompts are named by their text (`prefix_chain`). Pods name what they cache by the engine's block hashes. An answer's
header says which hashes stand behind a text, reports say which hashes a pod holds; together they tell exactly, whoever
sent the text there. Until a pod has reported, what was sent to it is assumed to be there.

A prompt costs O(its pieces); memory is bounded: 131,072 pieces of text at about 200 bytes, 524,288 block hashes at
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
# Pieces of answered requests whose pod has not reported since; beyond this their marks are left to age.
UNSETTLED = 16_384
# No pod has so many blocks.
MOST_BLOCKS = 1 << 24


class DeltaError(ValueError):
    """A pod says of its cache what cannot be."""


@dataclass(slots=True)
class _Pod:
    """What one pod holds: hashes it reported, and texts it was sent since.

    `unsettled`: when answered, which texts, `pieces` of them in all.
    """

    hashes: set[int] = field(default_factory=set)
    assumed: RecentMap[bool] = field(default_factory=lambda: RecentMap(ASSUMED))
    unsettled: deque[tuple[float, tuple[bytes, ...]]] = field(default_factory=deque)
    pieces: int = 0
    sequence: int = 0


class PrefixIndex:
    """The prefix caches of all pods of one gateway, by text. Pods are named by any string that is theirs alone."""

    def __init__(self, texts: int = TEXTS, hashes: int = HASHES) -> None:
        self._texts: RecentMap[int] = RecentMap(texts)
        self._limit = hashes
        self._pods: dict[str, _Pod] = {}
        # Of all block hashes one in so many is kept, the same ones of every pod and behind every text.
        self.stride = 1

    def __len__(self) -> int:
        """Pieces of text known."""
        return len(self._texts)

    @property
    def hashes(self) -> int:
        """Block hashes known to be held, over all pods."""
        return sum(len(pod.hashes) for pod in self._pods.values())

    @property
    def assumed(self) -> int:
        """Pieces of text assumed to be held, over all pods."""
        return sum(len(pod.assumed) for pod in self._pods.values())

    def match(self, keys: Sequence[bytes], pods: Sequence[str]) -> list[int]:
        """How many of the first `keys` each of the pods holds."""
        behind = self._texts.leading(keys)
        if not behind:
            return [0] * len(pods)
        if self.stride > 1:
            behind = _kept(behind, self.stride)
        return [self._depth(self._pods.get(pod), keys, behind) for pod in pods]

    def sent(self, pod: str, keys: Sequence[bytes]) -> tuple[bytes, ...]:
        """A prompt goes to a pod: soon it will hold it. Gives the pieces that were not assumed to be there before."""
        assumed = self._pods.setdefault(pod, _Pod()).assumed
        # The start of a prompt is put last: it is what others share, and the last to be dropped.
        self._texts.renew(reversed(keys), 0)
        return tuple(assumed.renew(reversed(keys), True))

    def unsent(self, pod: str, keys: Sequence[bytes]) -> None:
        """The pod did not take what `sent` gave as new there."""
        if (known := self._pods.get(pod)) is not None:
            known.assumed.discard(keys)

    def learn(self, pod: str, keys: Sequence[bytes], size: int, prompt: PromptBlocks) -> None:
        """The pod said which blocks stand behind a text of `size` bytes.

        Where a piece ends in tokens only the pod knows: they are taken to be spread evenly over the text, less a block,
        so that the end of a shared beginning does not get the hash of what follows it.
        """
        if keys and prompt.marks:
            self._learn(keys, size, prompt)
        else:
            self.unsent(pod, keys)

    def finished(self, pod: str, keys: tuple[bytes, ...], now: float) -> None:
        """The answer is over. If it is known what stands behind the text, only the pod's reports count from then on."""
        known = self._pods.get(pod)
        if known is None or not keys:
            return
        known.unsettled.append((now, keys))
        known.pieces += len(keys)
        while known.pieces > UNSETTLED:
            known.pieces -= len(known.unsettled.popleft()[1])

    def sequence(self, pod: str) -> int:
        """What to ask the pod's next report with."""
        known = self._pods.get(pod)
        return known.sequence if known else 0

    def reported(self, pod: str, delta: CacheDelta, after: int, blocks: int, asked: float) -> None:
        """Take what a pod says of its cache of `blocks` blocks, asked at `asked` for what came after `after`.

        Raises `DeltaError` when that cannot be; the next report is then asked for all of it.
        """
        known = self._pods.setdefault(pod, _Pod())
        if after != known.sequence and not delta.reset:
            return  # A difference to what is not known any more: overtaken by another answer, or the pod is a new one.
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
        """The pod is gone, or another has its name."""
        self._pods.pop(pod, None)
        if not self._pods:
            self.stride = 1

    def _depth(self, pod: _Pod | None, keys: Sequence[bytes], behind: Sequence[int]) -> int:
        """How many pieces from the first on the pod holds: who holds one holds all before it."""
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
        """Put behind each piece the last named block that ends before it does, behind the first ones the first."""
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
        """Keep to the bound: half of the hashes go, those that are left tell of the blocks before them."""
        while self.hashes > self._limit:
            self.stride *= 2
            for pod in self._pods.values():
                pod.hashes = {number for number in pod.hashes if not number % self.stride}

    def _settle(self, pod: _Pod, asked: float) -> None:
        """What was answered before a report was asked for is in it, or not in the cache."""
        while pod.unsettled and pod.unsettled[0][0] < asked:
            keys = pod.unsettled.popleft()[1]
            pod.pieces -= len(keys)
            pod.assumed.discard(key for key in keys if self._texts.get(key))


def _kept(behind: Sequence[int], stride: int) -> list[int]:
    """Behind each piece the last hash before its end that is kept, behind the first ones the first."""
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
