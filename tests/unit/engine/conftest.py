"""Fixtures over the pieces in `echo`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo_inference.models.config import ModelConfig
from octavo_inference.models.weights import Weights

from .echo import EchoBackend, Runner, make_runner, tiny_model


@pytest.fixture(scope="session")
def runner() -> Callable[..., Runner]:
    return make_runner


@pytest.fixture(scope="session")
def echo() -> Callable[..., EchoBackend]:
    return EchoBackend


@pytest.fixture(scope="session")
def tiny() -> tuple[ModelConfig, Weights]:
    return tiny_model()
