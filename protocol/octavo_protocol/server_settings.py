"""The settings of `octavo-server`: the operator writes them into a pod's settings file and the server reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from octavo_protocol.engine_settings import EngineSettings, PoolingName, RelevanceName
from octavo_protocol.knobs import BYTES, Knob
from octavo_protocol.names import PORT_ADMIN, PORT_API


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The engine's settings, and those of the server around it. Times in seconds."""

    engine: EngineSettings = field(default_factory=EngineSettings)
    served_model_names: Annotated[
        tuple[str, ...],
        Knob(
            "name that clients use; repeat it for aliases",
            unset="the file's name",
            group="model",
            key="served-model-name",
            metavar="NAME",
            pattern=r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}",
            hint="use up to 128 letters, digits and . _ : / @ -",
        ),
    ] = ()
    pooling: Annotated[
        PoolingName | None,
        Knob(
            "how embeddings are pooled from the hidden states of a text: their mean, or that of the first (cls) or the "
            "last token",
            unset="the checkpoint's, else mean for encoders and last for decoders",
            group="model",
        ),
    ] = None
    relevance: Annotated[
        RelevanceName,
        Knob(
            "what /score and /rerank compute: the similarity of embeddings, or the model's answer yes or no",
            group="model",
        ),
    ] = "embedding"
    adapters: Annotated[
        tuple[str, ...],
        Knob(
            "a LoRA adapter, by name and folder; repeat it for more; needs max_loaded_adapters",
            unset="none",
            group="model",
            key="adapter",
            metavar="NAME=PATH",
            pattern=r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}=.+",
            hint="use NAME=PATH, as in sql=/adapters/sql",
        ),
    ] = ()
    adapters_file: Annotated[
        str | None,
        Knob(
            "JSON list of adapters, each with name and path, that is read again when it changes",
            unset="none",
            group="model",
            metavar="FILE",
        ),
    ] = None
    adapter_root: Annotated[
        str | None,
        Knob(
            "folder of the adapters that the admin port may load by request",
            unset="none are loaded by request",
            group="model",
            metavar="FOLDER",
        ),
    ] = None
    host: Annotated[str, Knob("address of the API", group="HTTP")] = "127.0.0.1"
    port: Annotated[int, Knob("port of the API; 0: any free one", group="HTTP", low=0, high=65535)] = PORT_API
    admin_host: Annotated[str, Knob("address of metrics, load and drain", group="HTTP")] = "127.0.0.1"
    admin_port: Annotated[int, Knob("their port; 0: any free one", group="HTTP", low=0, high=65535)] = PORT_ADMIN
    api_key_file: Annotated[
        str | None,
        Knob("keys that clients must present, one per line", unset="no key needed", group="HTTP", metavar="FILE"),
    ] = None
    admin_key_file: Annotated[
        str | None,
        Knob("the same for the admin port", unset="no key needed", group="HTTP", metavar="FILE"),
    ] = None
    tenant_header: Annotated[
        bool,
        Knob(
            "trust X-Octavo-Tenant and X-Octavo-Priority, for servers that only gateways reach",
            group="HTTP",
        ),
    ] = False
    page: Annotated[
        bool, Knob("a page at /, with the model, its settings and load, and a chat to try it", group="HTTP")
    ] = True
    drain_timeout: Annotated[
        float,
        Knob(
            "how long running answers may finish after SIGTERM",
            group="HTTP",
            unit="seconds",
            metavar="SECONDS",
            low=0,
            high=3600,
        ),
    ] = 120.0
    stall_seconds: Annotated[
        float,
        Knob(
            "work pending and no step for this long: dump stacks and exit",
            group="HTTP",
            unit="seconds",
            metavar="SECONDS",
            low=1,
            high=3600,
        ),
    ] = 30.0
    response_store_entries: Annotated[
        int,
        Knob(
            "responses of /v1/responses that are kept for GET and previous_response_id; 0: none",
            group="stored responses",
            low=0,
            high=1_000_000,
        ),
    ] = 1000
    response_store_memory: Annotated[
        int,
        Knob(
            "memory for them; the least recently used one goes first",
            unset="16Mi",
            group="stored responses",
            unit=BYTES,
        ),
    ] = 16 * 2**20
    response_store_ttl: Annotated[
        float,
        Knob(
            "how long each is kept",
            group="stored responses",
            unit="seconds",
            metavar="SECONDS",
            low=1,
            high=2_592_000,
        ),
    ] = 3600.0
    response_store_tenant_percent: Annotated[
        int,
        Knob("percent of entries and memory that one tenant may use", group="stored responses", low=1, high=100),
    ] = 50
    log_format: Annotated[Literal["text", "json"], Knob("one text or one JSON object per line", group="other")] = "text"
