"""GET /openapi.json, and /docs with Swagger UI from a package.

They need no key: a browser sends none with a page, and they hold nothing that is not in the public documentation.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from octavo_inference.server.endpoint import HttpEndpoint
from octavo_inference.server.http import json_response
from octavo_inference.server.openapi.document import Document
from octavo_inference.server.openapi.legacy import as_openapi_30
from octavo_inference.server.service import Service

# Nothing from other hosts. Swagger UI's style sheet has images as data URLs.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_ASSET_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "public, max-age=86400"}
ASSETS = ("swagger-ui.css", "swagger-ui-bundle.js", "favicon-32x32.png")
"""Files of Swagger UI that the page needs."""

# Addresses are relative, so that the page works below a prefix.
PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Octavo API</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" href="docs/favicon-32x32.png">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
# `validatorUrl`: by default the page sends the document's address to a validator on the internet.
START = """\
SwaggerUIBundle({
  url: "docs/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
});
"""


def documentation(document: Document) -> tuple[HttpEndpoint, ...]:
    """The endpoints that show a document."""
    legacy: bytes | None = None

    async def openapi_json(_: Service, __: Request) -> Response:
        """Get this document: OpenAPI 3.1."""
        return json_response(await asyncio.to_thread(document.encoded))

    async def docs_openapi_json(_: Service, __: Request) -> Response:
        """Get the document as OpenAPI 3.0, for the page."""
        nonlocal legacy
        if legacy is None:
            legacy = await asyncio.to_thread(lambda: _as_legacy(document))
        return json_response(legacy)

    return (
        HttpEndpoint("GET", "/openapi.json", openapi_json, is_open=True),
        HttpEndpoint("GET", "/docs", docs_page, is_open=True),
        HttpEndpoint("GET", "/docs/openapi.json", docs_openapi_json, is_open=True),
        HttpEndpoint("GET", "/docs/start.js", docs_script, is_open=True),
        *(HttpEndpoint("GET", f"/docs/{name}", docs_file, is_open=True) for name in ASSETS),
    )


async def docs_page(_: Service, __: Request) -> Response:
    """Get the documentation as a page (Swagger UI)."""
    return Response(PAGE, media_type="text/html", headers=_PAGE_HEADERS)


async def docs_script(_: Service, __: Request) -> Response:
    """Get the script that starts the page."""
    return Response(START, media_type="text/javascript", headers=_ASSET_HEADERS)


async def docs_file(_: Service, request: Request) -> Response:
    """Get a file of Swagger UI."""
    return FileResponse(await asyncio.to_thread(_asset, request.url.path), headers=_ASSET_HEADERS)


def _asset(path: str) -> Path:
    from swagger_ui_bundle import swagger_ui_path  # noqa: PLC0415 -- few servers show the page

    # Routes exist for ASSETS only, so the name is one of them.
    return Path(swagger_ui_path) / path.rpartition("/")[2]


def _as_legacy(document: Document) -> bytes:
    return msgspec.json.encode(as_openapi_30(msgspec.json.decode(document.encoded())))
