"""What the API's types are made of: blocks with CEL rules, quantities, times."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
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
Quantity = Annotated[str, Field(pattern=QUANTITY), BeforeValidator(str), WithJsonSchema(_INT_OR_STRING)]
Bytes = Annotated[str, Field(pattern=BYTES), BeforeValidator(str), WithJsonSchema(_INT_OR_STRING | {"pattern": BYTES})]
Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]

_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
OBJECT_NAME = f"^{_SUBDOMAIN}$"
# A label's name with its prefix, and a label's value.
LABEL_KEY = rf"^({_SUBDOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=OBJECT_NAME)]
LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=LABEL_KEY)]
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE)]


class Rule(BaseModel):
    """One CEL rule: `rule` must hold, otherwise the API server answers `message`.

    `found` is a CEL expression of a text that shows what was found; it is answered in place of `message`.
    """

    rule: str
    message: str
    found: str | None = Field(default=None, serialization_alias="messageExpression")

    def schema_entry(self) -> Json:
        """The rule in a schema's `x-kubernetes-validations`."""
        return self.model_dump(by_alias=True, exclude_none=True)


def unset(schema: Json) -> None:
    """`json_schema_extra` of a field whose default is the operator's: the API server must not fill it in.

    So a value that was given can be told from one that was not (`model_fields_set`).
    """
    schema.pop("default", None)


class ApiBlock(BaseModel):
    """A structured value of the API, written in camelCase."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")
    RULES: ClassVar[tuple[Rule, ...]] = ()
