"""What a launch of a list gives to the driver, beside an ordinary launch: python -m tests.kernels.launch_arguments

Run it without TRITON_INTERPRET. Prints the number of launches that were compared; fails with the first that differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from octavo_inference.backends.cuda.aot.null_driver import NullDriver
from octavo_inference.backends.cuda.kernels.activation import gated
from octavo_inference.backends.cuda.kernels.norm import DeviceNorm, add_normalize, normalize
from octavo_inference.backends.cuda.launch_list import record


class Listening(NullDriver):
    """A driver that notes what it is given."""

    given: list[tuple[Any, ...]]

    def launcher_cls(self, _source: Any, _metadata: Any) -> Callable[..., None]:
        return lambda *arguments: self.given.append(tuple(map(comparable, arguments)))


def comparable(argument: Any) -> Any:
    """A tensor by its address, other objects by their type."""
    if isinstance(argument, torch.Tensor):
        return argument.data_ptr(), argument.shape
    return argument if isinstance(argument, int | float | tuple) else type(argument)


def work(residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """Positional and named arguments, constants of all kinds, one and two dimensions of programs."""
    normalize(x, DeviceNorm(weight), 1e-5, out)
    add_normalize(residual, x, 0.5, DeviceNorm(weight), 1e-5, out)
    gated(x, out[:, :32], "gelu_tanh")


def main() -> None:
    driver = Listening(90)
    driver.given = []
    driver.activate()
    tensors = [torch.zeros(5, 64), torch.zeros(5, 64), torch.zeros(64), torch.zeros(5, 64)]
    work(*tensors)
    ordinary, driver.given = driver.given, []
    launches = record(lambda: work(*tensors))
    assert not driver.given, "a recording launches nothing"
    launches.replay()
    for one, other in zip(ordinary, driver.given, strict=True):
        assert one == other, f"{one} and {other}"
    print(len(ordinary))


if __name__ == "__main__":
    main()
