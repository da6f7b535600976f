"""Every kernel at the shapes of real models."""

from __future__ import annotations

from collections.abc import Collection

from bench.gpu.cases import (
    adapted_experts,
    adapters,
    attention,
    elementwise,
    experts,
    latent,
    linear,
    sampling,
    state_layers,
)
from bench.gpu.cases.case import Case


def every() -> list[Case]:
    """All cases, by kernel."""
    groups = (elementwise, attention, latent, state_layers, linear, experts, adapters, adapted_experts, sampling)
    return [case for group in groups for case in group.CASES]


def chosen(kernels: Collection[str], *, quick: bool) -> list[Case]:
    """Cases of the named kernels (of all by default), or only the quick ones. SystemExit on an unknown name."""
    cases = every()
    known = sorted({case.kernel for case in cases})
    if unknown := sorted(set(kernels) - set(known)):
        raise SystemExit(f"no kernel {', '.join(unknown)}; there are {', '.join(known)}")
    return [case for case in cases if (not kernels or case.kernel in kernels) and (case.quick or not quick)]
