"""The endpoints that load and unload adapters, in vLLM's form. On the admin port."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from octavo_inference.server import json_body
from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.errors import ApiError, invalid, not_ready
from octavo_inference.server.http import until_disconnect
from octavo_inference.server.service import Service
from octavo_protocol import names
from octavo_protocol.adapters import MAX_ADAPTERS

# With a bound that a pattern alone says; `is_adapter_name` has the whole rule.
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}\Z")]


class LoadAdapterRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An adapter to load."""

    lora_name: Name
    """The name by which requests select it, as their model."""
    lora_path: Annotated[str, Meta(min_length=1, max_length=4096)]
    """Its folder, within the server's --adapter-root."""
    load_inplace: bool = False
    """True to take the place of an adapter with the same name. Defaults to false, which refuses such a name."""


class UnloadAdapterRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An adapter to unload."""

    lora_name: Name
    """Its name."""


async def load_adapter(service: Service, request: Request) -> Response:
    """Load an adapter, and answer once it can be used. Requests that run are not interrupted."""
    body = await json_body.read(request, LoadAdapterRequest)
    if not service.is_ready:
        raise not_ready()
    refusal = service.adapters.refusal(body.lora_name)
    if refusal:
        raise invalid(f"lora_name: {refusal}.", "lora_name")
    await until_disconnect(request.receive, _load(service, body))
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def _load(service: Service, body: LoadAdapterRequest) -> None:
    """Load an adapter after those of the same name that were asked for before. Raises `ApiError`."""
    adapters, name = service.adapters, body.lora_name
    async with adapters.turn(name):
        known = adapters.find(name)
        if known is not None and not body.load_inplace:
            raise invalid(
                f"lora_name: the adapter {name!r} is loaded already; unload it first, or set load_inplace.", "lora_name"
            )
        if known is None and adapters.count >= MAX_ADAPTERS:
            raise invalid(
                f"lora_name: {MAX_ADAPTERS} adapters are loaded, which is the limit; unload one.", "lora_name"
            )
        path = _inside(service.adapter_root, body.lora_path)
        _refuse_listed(service, name)
        failure = await adapters.load(name, str(path))
    if failure:
        raise invalid(f"lora_path: {failure}.", "lora_path")


async def unload_adapter(service: Service, request: Request) -> Response:
    """Unload an adapter, after a load of its name that runs. Its running requests finish; new ones are refused."""
    body = await json_body.read(request, UnloadAdapterRequest)
    await until_disconnect(request.receive, _unload(service, body.lora_name))
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


async def _unload(service: Service, name: str) -> None:
    """Raises `ApiError` if there is no adapter of this name, or if the list file has it."""
    async with service.adapters.turn(name):
        _refuse_listed(service, name)
        if not service.adapters.withdraw(name):
            raise ApiError(
                404, f"lora_name: there is no adapter {name!r}.", param="lora_name", code="adapter_not_found"
            )


def _refuse_listed(service: Service, name: str) -> None:
    """Raise `ApiError` for an adapter of the list file, which alone says whether it is there."""
    known = service.adapters.find(name)
    if known is not None and known.listed:
        raise invalid(f"lora_name: the adapter {name!r} is in --adapters-file; change that list instead.", "lora_name")


def _inside(root: Path | None, given: str) -> Path:
    """The real path of a folder within the root. Raises `ApiError`."""
    if root is None:
        raise ApiError(
            403,
            "lora_path: this server reads no adapters by request; start it with --adapter-root, the folder that they "
            "may be in.",
            param="lora_path",
            code="no_adapter_root",
        )
    if "\0" in given:
        raise invalid("lora_path: it has a zero byte.", "lora_path")
    real_root, real = os.path.realpath(root), os.path.realpath(root / given)
    if os.path.commonpath((real_root, real)) != real_root:
        raise invalid(f"lora_path: {given[:128]!r} is not within --adapter-root.", "lora_path")
    if not os.path.isdir(real):  # noqa: PTH112 -- as a text, like the line above
        raise ApiError(
            404, f"lora_path: there is no folder {given[:128]!r}.", param="lora_path", code="adapter_not_found"
        )
    return Path(real)


ENDPOINTS = (
    HttpEndpoint(
        "POST",
        names.PATH_LOAD_ADAPTER,
        load_adapter,
        body=LoadAdapterRequest,
        answer=str,
        media="text/plain",
        errors=(403,),
        example={"lora_name": "sql", "lora_path": "sql-v2"},
    ),
    HttpEndpoint(
        "POST",
        names.PATH_UNLOAD_ADAPTER,
        unload_adapter,
        body=UnloadAdapterRequest,
        answer=str,
        media="text/plain",
        example={"lora_name": "sql"},
    ),
)
