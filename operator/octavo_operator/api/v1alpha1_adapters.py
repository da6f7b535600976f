"""`spec.model.adapters`: LoRA adapters, each a model by its own name."""

from __future__ import annotations

from pydantic import Field

from octavo_operator.api.base import ApiBlock
from octavo_operator.api.model_uri import DOWNLOADED, REVISION, download_rules
from octavo_protocol.adapters import ADAPTER_NAME

MOST = 64
# Slots of a server whose LLMDeployment has adapters and names no number.
LOADED = 8


class AdapterSpec(ApiBlock):
    """AdapterSpec defines a LoRA adapter of the model, which clients use as a model by its name."""

    RULES = download_rules("model.adapters[]", "status.adapters[].revision")

    name: str = Field(
        min_length=1,
        max_length=128,
        pattern=ADAPTER_NAME.replace(r"\Z", "$"),
        description="name is the model name that clients send in requests for the adapter. It must be unique, and "
        "differ from servedName and aliases.",
    )
    uri: str = Field(
        max_length=512,
        pattern=DOWNLOADED,
        description="uri is the location of the adapter, a folder that PEFT saved as safetensors. The schemes are "
        "`hf://ORGANISATION/REPOSITORY`, `s3://BUCKET/PREFIX` and `gs://BUCKET/PREFIX`. If the model has the same "
        "scheme, it is downloaded with the Secret of spec.model.credentialsSecretRef, otherwise without credentials.",
    )
    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        pattern=REVISION,
        description="revision is the revision of the adapter to download: a branch, tag or commit for `hf://`, and a "
        "hash for `s3://` and `gs://`. If unset, it is the branch main of a hub repository, or the files that the "
        "bucket has. A branch or tag is resolved to a commit once, and all replicas load that commit.",
    )
