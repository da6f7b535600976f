"""The type of answers that Python clients are asked for."""

from __future__ import annotations

from typing import Literal

from checks import CITIES
from pydantic import BaseModel, Field

City = Literal[CITIES]


class Report(BaseModel):
    """The temperature of a city."""

    city: City
    degrees: int = Field(ge=-50, le=50)
