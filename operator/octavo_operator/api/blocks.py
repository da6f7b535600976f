"""What the API's types are made of: blocks with CEL rules, quantities, times."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema
from pydantic.alias_generators import to_camel

Json = dict[str, Any]

QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|[MGTPE]|[KMGTPE]i)?$"
BYTES = r"^[1-9][0-9]*(k|[MGT]|[KMGT]i)?$"

_INT_OR_STRING: Json = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
    "pattern": QUANTITY,
    "maxLength": 32,
}
Quantity = Annotated[str, BeforeValidator(str), WithJsonSchema(_INT_OR_STRING)]
Bytes = Annotated[str, BeforeValidator(str), WithJsonSchema(_INT_OR_STRING | {"pattern": BYTES})]
FreeObject = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]
Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]


class Rule(BaseModel):
    """One CEL rule: `rule` must hold, otherwise the API server answers `message`."""

    rule: str
    message: str


class Block(BaseModel):
    """A structured value of the API, written in camelCase."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")
    RULES: ClassVar[tuple[Rule, ...]] = ()
