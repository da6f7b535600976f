"""Names that more than one part must spell the same way."""

from __future__ import annotations

from typing import Final

API_GROUP: Final = "octavo.dev"
API_VERSION: Final = "v1alpha1"
KIND: Final = "LLMDeployment"
PLURAL: Final = "llmdeployments"

# Labels of every object the operator makes. A pod belongs to the LLMDeployment that LABEL_NAME names.
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "octavo"
LABEL_NAME: Final = "octavo.dev/llmdeployment"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
COMPONENT_SERVER: Final = "server"
# On the pods of a canary, and on the Service that finds them.
LABEL_TRACK: Final = "octavo.dev/track"
TRACK_CANARY: Final = "canary"

# Set on a pod by the operator when it is chosen to go: the time since when. Gateways leave it once it terminates.
ANNOTATION_DRAINING: Final = "octavo.dev/draining"
ANNOTATION_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"

# Annotation of the child Service: the model names (comma-separated, first the served name, then aliases) that the
# gateway routes to it, and the LLMDeployment's settings that the gateway needs without reading the resource itself.
ANNOTATION_MODELS: Final = "octavo.dev/models"
# "true" when the gateway may hold requests for it while no replica is ready (scale to zero, rollout, start).
ANNOTATION_HOLD: Final = "octavo.dev/hold"
# "true" while somebody has suspended it: no replica will start, and gateways say so.
ANNOTATION_SUSPENDED: Final = "octavo.dev/suspended"
# Why no replica can start, as one of the reasons of the condition Ready: waiting does not help, and gateways say so.
ANNOTATION_STUCK: Final = "octavo.dev/cannot-start"
# Last measured seconds from pod creation to ready, for Retry-After.
ANNOTATION_COLD_START: Final = "octavo.dev/cold-start-seconds"
# How gateways choose among its pods, the load in percent of the mean above which a prefix or a session does not keep a
# request on a pod, and the header that names a session.
ANNOTATION_STRATEGY: Final = "octavo.dev/routing-strategy"
ANNOTATION_MAX_LOAD: Final = "octavo.dev/max-load-percent"
ANNOTATION_SESSION_HEADER: Final = "octavo.dev/session-header"
# While there is a canary: its share of the requests in percent, and the step under which answers are counted.
ANNOTATION_CANARY_PERCENT: Final = "octavo.dev/canary-percent"
ANNOTATION_CANARY_STEP: Final = "octavo.dev/canary-step"

PORT_API: Final = 8000
PORT_ADMIN: Final = 9000
PORT_GATEWAY: Final = 8080
PORT_OPERATOR: Final = 8081
PORT_NAME_API: Final = "api"
PORT_NAME_ADMIN: Final = "admin"

PATH_LOAD: Final = "/v1/octavo/load"
# Of PATH_LOAD: the `CacheDelta.sequence` up to which the reader knows the pod's cache.
QUERY_CACHE_AFTER: Final = "cache_after"
PATH_DRAIN: Final = "/v1/octavo/drain"
PATH_CACHE_RESET: Final = "/v1/octavo/cache/reset"
PATH_WAKE: Final = "/v1/octavo/wake"
# Of gateways, for each other.
PATH_PEERS: Final = "/v1/octavo/peers"

# Internal headers: stripped from what clients send and from what pods answer.
HEADER_PREFIX: Final = "x-octavo-"
HEADER_DRAINING: Final = "X-Octavo-Draining"
# Gateway to pod: "1" asks for HEADER_PROMPT in the answer (`octavo_protocol.prompt`).
HEADER_WANT_PROMPT: Final = "X-Octavo-Want-Prompt"
HEADER_PROMPT: Final = "X-Octavo-Prompt"
# Gateway to pod: whose request it is (an opaque id), and the highest priority it may have.
HEADER_TENANT: Final = "X-Octavo-Tenant"
HEADER_PRIORITY: Final = "X-Octavo-Priority"
HEADER_TIMEOUT: Final = "X-Request-Timeout"
HEADER_REQUEST_ID: Final = "X-Request-Id"
