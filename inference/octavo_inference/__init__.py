"""Paged-attention, continuous-batching inference server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo_inference.async_llm import AsyncLLM as AsyncLLM
    from octavo_inference.core.request import SamplingParams as SamplingParams
    from octavo_inference.llm import LLM as LLM

__all__ = ["LLM", "AsyncLLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    # Importing the package must stay cheap: the API process and small tools need neither numpy nor the engine.
    if name == "LLM":
        from octavo_inference.llm import LLM  # noqa: PLC0415

        return LLM
    if name == "AsyncLLM":
        from octavo_inference.async_llm import AsyncLLM  # noqa: PLC0415

        return AsyncLLM
    if name == "SamplingParams":
        from octavo_inference.core.request import SamplingParams  # noqa: PLC0415

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
