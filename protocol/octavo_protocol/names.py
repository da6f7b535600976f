"""Names shared by several parts of Octavo: API group, labels, annotations, ports, paths, headers."""

from __future__ import annotations

from typing import Final

API_GROUP: Final = "octavo.dev"
API_VERSION: Final = "v1alpha1"
KIND: Final = "LLMDeployment"
PLURAL: Final = "llmdeployments"

# Labels of every object that the operator creates. LABEL_NAME is the name of its LLMDeployment.
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "octavo"
LABEL_NAME: Final = "octavo.dev/llmdeployment"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
COMPONENT_SERVER: Final = "server"
# On the pods of a canary, and on the Service that selects them.
LABEL_TRACK: Final = "octavo.dev/track"
TRACK_CANARY: Final = "canary"

# Set by the operator on a pod selected for removal: the time of the selection. Gateways stop using the pod when it
# terminates.
ANNOTATION_DRAINING: Final = "octavo.dev/draining"
ANNOTATION_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"

# Annotations of the child Service, from which gateways learn the settings without reading the LLMDeployment itself.
# The model names that gateways route to it, comma-separated: first the served name, then aliases.
ANNOTATION_MODELS: Final = "octavo.dev/models"
# The model's adapters, comma-separated: gateways route these names to it, too.
ANNOTATION_ADAPTERS: Final = "octavo.dev/adapters"
# "true" if gateways may hold requests while no replica is ready (scale to zero, rollout, start).
ANNOTATION_HOLD: Final = "octavo.dev/hold"
# "true" while spec.suspend is true: no replica will start, and gateways return that as an error.
ANNOTATION_SUSPENDED: Final = "octavo.dev/suspended"
# Why no replica can start, a reason of the condition Ready: gateways return it as an error instead of holding.
ANNOTATION_STUCK: Final = "octavo.dev/cannot-start"
# Last measured seconds from pod creation to ready; gateways use it for Retry-After.
ANNOTATION_COLD_START: Final = "octavo.dev/cold-start-seconds"
# The routing strategy; the load in percent of the mean above which prefix or session affinity is ignored; and the
# header with the session id.
ANNOTATION_STRATEGY: Final = "octavo.dev/routing-strategy"
ANNOTATION_MAX_LOAD: Final = "octavo.dev/max-load-percent"
ANNOTATION_SESSION_HEADER: Final = "octavo.dev/session-header"
# During a canary: its share of the requests in percent, and the step under which responses are counted.
ANNOTATION_CANARY_PERCENT: Final = "octavo.dev/canary-percent"
ANNOTATION_CANARY_STEP: Final = "octavo.dev/canary-step"

PORT_API: Final = 8000
PORT_ADMIN: Final = 9000
PORT_GATEWAY: Final = 8080
PORT_OPERATOR: Final = 8081
PORT_NAME_API: Final = "api"
PORT_NAME_ADMIN: Final = "admin"

PATH_LOAD: Final = "/v1/octavo/load"
# Query parameter of PATH_LOAD: the `CacheDelta.sequence` up to which the reader knows the pod's cache.
QUERY_CACHE_AFTER: Final = "cache_after"
PATH_DRAIN: Final = "/v1/octavo/drain"
PATH_CACHE_RESET: Final = "/v1/octavo/cache/reset"
PATH_SLEEP: Final = "/v1/octavo/sleep"
PATH_WAKE_UP: Final = "/v1/octavo/wake_up"
PATH_LOAD_ADAPTER: Final = "/v1/load_lora_adapter"
PATH_UNLOAD_ADAPTER: Final = "/v1/unload_lora_adapter"
PATH_PROFILE: Final = "/v1/octavo/profile"
PATH_WAKE: Final = "/v1/octavo/wake"
# Between gateways.
PATH_PEERS: Final = "/v1/octavo/peers"

# Prefix of internal headers: gateways strip them from requests of clients and from responses of pods.
HEADER_PREFIX: Final = "x-octavo-"
HEADER_DRAINING: Final = "X-Octavo-Draining"
# Gateway to pod: "1" requests HEADER_PROMPT in the response (`octavo_protocol.prompt`).
HEADER_WANT_PROMPT: Final = "X-Octavo-Want-Prompt"
HEADER_PROMPT: Final = "X-Octavo-Prompt"
# Gateway to pod: the tenant of the request (an opaque id), and its maximum priority.
HEADER_TENANT: Final = "X-Octavo-Tenant"
HEADER_PRIORITY: Final = "X-Octavo-Priority"
HEADER_TIMEOUT: Final = "X-Request-Timeout"
HEADER_REQUEST_ID: Final = "X-Request-Id"
