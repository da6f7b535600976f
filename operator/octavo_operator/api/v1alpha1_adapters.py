"""`spec.model.adapters`: LoRA adapters, each a model by its own name."""

from __future__ import annotations

from pydantic import Field

from octavo_operator.api.base import ApiBlock, Rule
from octavo_operator.api.model_uri import PATTERN, REVISION, claim_rule, download_rules
from octavo_protocol.adapters import ADAPTER_NAME

MOST = 64
# Slots of a server whose LLMDeployment has adapters and names no number.
LOADED = 8


class AdapterSpec(ApiBlock):
    """AdapterSpec defines a LoRA adapter of the model, which clients use as a model by its name."""

    RULES = (
        *download_rules("model.adapters[]", "status.adapters[].revision"),
        claim_rule("model.adapters[]"),
        Rule(
            rule="!self.uri.startsWith('oci://')",
            message="model.adapters[].uri must not have scheme oci: pods that run cannot mount an image; use hf, s3, "
            "gs, or pvc with the claim of the model",
        ),
        Rule(
            rule="!has(self.revision) || !self.uri.startsWith('pvc://')",
            message="model.adapters[].revision is only allowed for hf://, s3:// and gs:// adapters; put another "
            "version into another folder of the volume",
        ),
    )

    name: str = Field(
        min_length=1,
        max_length=128,
        pattern=ADAPTER_NAME.replace(r"\Z", "$"),
        description="name is the model name that clients send in requests for the adapter. It must be unique, and "
        "differ from servedName and aliases.",
    )
    uri: str = Field(
        max_length=512,
        pattern=PATTERN,
        description="uri is the location of the adapter, a folder that PEFT saved as safetensors. The schemes are "
        "`hf://ORGANISATION/REPOSITORY`, `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` and `pvc://CLAIM/PATH`. A CLAIM "
        "must be the claim of the model; its folder is read in place. Other adapters are downloaded, with the keys for "
        "their scheme of the Secret of spec.model.credentialsSecretRef.",
    )
    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        pattern=REVISION,
        description="revision is the revision of the adapter to download: a branch, tag or commit for `hf://`, and a "
        "hash for `s3://` and `gs://`. If unset, it is the branch main of a hub repository, or the files that the "
        "bucket has. A branch or tag is resolved to a commit once, and all replicas load that commit. Not allowed for "
        "`pvc://`.",
    )
