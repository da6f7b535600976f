"""The sampler on the device: the rule of ops/sampling.py, row by row, in kernels.

One copy takes the rows' parameters in, one more a group of histories where rows have penalties, and one brings the
tokens back; one more where log-probabilities were asked for. Nothing waits for the device before `collect`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor as Torch

from octavo_inference.ops.triton.logprobs import log_probabilities
from octavo_inference.ops.triton.penalties import penalize
from octavo_inference.ops.triton.sample import choose
from octavo_inference.run.batch import Float32, Int32, LogitAdjust, SampleRows, StepResult

_COLUMNS = {  # of the staged parameters, the widest first so that each is aligned
    "seed": torch.int64,
    "position": torch.int32,
    "top_k": torch.int32,
    "logprobs": torch.int32,
    "temperature": torch.float32,
    "top_p": torch.float32,
    "min_p": torch.float32,
}
_ROW_BYTES = sum(dtype.itemsize for dtype in _COLUMNS.values())
_HEADER = 8  # integers that describe one row's history
_GROUP = 32  # rows whose penalties are applied at once: each takes a count per id


@dataclass(frozen=True, slots=True)
class Launched:
    """A batch whose tokens are on their way."""

    tokens: Torch
    report: tuple[Torch, Torch] | None
    wanted: Int32
    vocab: int
    done: torch.cuda.Event | None

    def collect(self) -> StepResult:
        """Wait for the device, and only for this batch. Raises what the device raised since the last wait."""
        if self.done is not None:
            self.done.synchronize()
        rows = len(self.wanted)
        logprob, rank = np.zeros(rows, np.float32), np.zeros(rows, np.int32)
        top: list[tuple[Int32, Float32] | None] = [None] * rows
        tokens: Int32 = self.tokens.numpy()
        if self.report is not None:
            integers, floats = (part.numpy() for part in self.report)
            for i in np.flatnonzero((self.wanted >= 0) & (tokens >= 0)):
                count = 1 + min(int(self.wanted[i]), self.vocab)
                rank[i], logprob[i] = integers[i, 0], floats[i, 0]
                top[i] = (integers[i, 1:count], floats[i, 1:count])
        return StepResult(tokens, logprob, rank, top)


class Sampler:
    """Chooses tokens for up to `max_rows` rows, with up to `max_logprobs` alternatives each.

    All device memory is taken at once, `sampler_bytes` of it. Kernels and copies go to the current stream.
    """

    def __init__(
        self, device: torch.device, *, vocab: int, max_rows: int, max_model_len: int, max_logprobs: int
    ) -> None:
        def empty(*shape: int, dtype: torch.dtype) -> Torch:
            return torch.empty(shape, dtype=dtype, device=device)

        self.tokens = empty(max_rows, dtype=torch.int32)
        """The last batch's tokens on the device."""
        self._vocab = vocab
        self._max_rows = max_rows
        self._pinned = device.type == "cuda"
        self._parameters = empty(max_rows * _ROW_BYTES, dtype=torch.uint8)
        self._weights = empty(max_rows, vocab, dtype=torch.float32)
        self._counts = empty(_GROUP, vocab, dtype=torch.int32).zero_()
        self._history = empty(_GROUP * _HEADER + _capacity(vocab, max_model_len), dtype=torch.int32)
        # The report of a row: rank and log-probability of its token, then ids and log-probabilities of the best.
        self._integers = empty(max_rows, 1 + max_logprobs, dtype=torch.int32)
        self._floats = empty(max_rows, 1 + max_logprobs, dtype=torch.float32)

    def sample(self, logits: Torch, rows: SampleRows) -> StepResult:
        """Choose one token for each row of logits [R, vocab] in float32, which are adjusted in place."""
        return self.launch(logits, rows).collect()

    def launch(self, logits: Torch, rows: SampleRows) -> Launched:
        """Start what `sample` does. Another batch may be launched before this one is collected."""
        count = len(rows.row)
        parameters = self._stage(rows)
        self._penalize(logits, rows.adjust)
        tokens = self.tokens[:count]
        choose(
            logits,
            self._weights,
            tokens,
            position=parameters["position"],
            seed=parameters["seed"],
            temperature=parameters["temperature"],
            top_p=parameters["top_p"],
            top_k=parameters["top_k"],
            min_p=parameters["min_p"],
        )
        report = None
        if rows.logprobs.max(initial=-1) >= 0:
            integers, floats = self._integers[:count], self._floats[:count]
            log_probabilities(logits, tokens, parameters["logprobs"], integers, floats)
            report = self._to_host(integers), self._to_host(floats)
        done = None
        host = self._to_host(tokens)
        if self._pinned:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        return Launched(host, report, rows.logprobs.copy(), self._vocab, done)

    def _stage(self, rows: SampleRows) -> dict[str, Torch]:
        host = self._host(len(self._parameters), torch.uint8)
        for name, column in _columns(host, self._max_rows).items():
            values = rows.seed.view(np.int64) if name == "seed" else getattr(rows, name)
            column[: len(rows.row)] = torch.from_numpy(values)
        self._parameters.copy_(host, non_blocking=True)
        return _columns(self._parameters, self._max_rows)

    def _penalize(self, logits: Torch, adjust: Sequence[LogitAdjust | None]) -> None:
        for group in _groups(adjust, len(self._history) - _GROUP * _HEADER):
            packed = _pack(group)
            host = self._host(len(packed), torch.int32)
            host.numpy()[:] = packed
            history = self._history[: len(packed)]
            history.copy_(host, non_blocking=True)
            split = len(group) * _HEADER
            penalize(logits, history[:split].view(-1, _HEADER), history[split:], self._counts)

    def _to_host(self, values: Torch) -> Torch:
        host = self._host(values.numel(), values.dtype).view(values.shape)
        host.copy_(values, non_blocking=True)
        return host

    def _host(self, size: int, dtype: torch.dtype) -> Torch:
        # Pinned memory is cached by torch, which gives none out again before the copies from and to it are done.
        return torch.empty(size, dtype=dtype, pin_memory=self._pinned)


def sampler_bytes(*, vocab: int, max_rows: int, max_model_len: int, max_logprobs: int) -> int:
    """Device memory that a `Sampler` takes, in bytes."""
    scratch = (max_rows + _GROUP) * vocab + _GROUP * _HEADER + _capacity(vocab, max_model_len)
    return 4 * scratch + max_rows * (_ROW_BYTES + 4 + 8 * (1 + max_logprobs))


@dataclass(frozen=True, slots=True)
class _History:
    """What of a row's adjustment its penalties need: ids they do not look at are left out."""

    row: int
    parts: tuple[Int32, Int32, Int32]
    factors: tuple[float, float, float]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)


def _history(row: int, adjust: LogitAdjust) -> _History:
    none = np.empty(0, np.int32)
    factors = (adjust.repetition_penalty, adjust.frequency_penalty, adjust.presence_penalty)
    prompt = adjust.prompt if factors[0] != 1.0 else none
    output = adjust.output if factors != (1.0, 0.0, 0.0) else none
    return _History(row, (prompt, output, adjust.banned), factors)


def _groups(adjust: Sequence[LogitAdjust | None], capacity: int) -> Iterator[list[_History]]:
    """The adjusted rows in groups of at most `_GROUP`, with at most `capacity` ids in each."""
    group: list[_History] = []
    size = 0
    for row, given in enumerate(adjust):
        if given is None:
            continue
        history = _history(row, given)
        if group and (len(group) == _GROUP or size + len(history) > capacity):
            yield group
            group, size = [], 0
        group.append(history)
        size += len(history)
    if group:
        yield group


def _pack(group: list[_History]) -> Int32:
    """Headers, then ids, as `penalize` reads them."""
    header = np.empty((len(group), _HEADER), np.int32)
    starts = np.cumsum([0, *(len(part) for history in group for part in history.parts)], dtype=np.int32)
    for i, history in enumerate(group):
        header[i, 0] = history.row
        header[i, 1:5] = starts[3 * i : 3 * i + 4]
        header[i, 5:] = np.array(history.factors, np.float32).view(np.int32)
    parts: list[NDArray[np.int32]] = [part for history in group for part in history.parts]
    return np.concatenate([header.reshape(-1), *parts], dtype=np.int32)


def _columns(buffer: Torch, rows: int) -> dict[str, Torch]:
    """Views of a parameter buffer, one value a row each."""
    columns, at = {}, 0
    for name, dtype in _COLUMNS.items():
        size = rows * dtype.itemsize
        columns[name] = buffer[at : at + size].view(dtype)
        at += size
    return columns


def _capacity(vocab: int, max_model_len: int) -> int:
    """Ids that one row can have: its tokens and the banned ones."""
    return max_model_len + vocab
