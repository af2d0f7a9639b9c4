"""Names that more than one process types: API group, labels, annotations, headers, ports, paths, gRPC methods.

The only place in the project where the API group is written. Holds no logic beyond joining strings.
"""

from __future__ import annotations

from typing import Final

GROUP: Final = "serving.pagoda.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

# Labels on every child of a service. Values are object names or hashes, hence always valid label values.
LABEL_SERVICE: Final = f"{GROUP}/service"
LABEL_SERVICE_UID: Final = f"{GROUP}/service-uid"
LABEL_REVISION: Final = f"{GROUP}/revision"
LABEL_ACCELERATOR: Final = f"{GROUP}/accelerator"
# By which install an InferenceService, a LoraAdapter or a TenantQuota is acted on, and on the children of such a service: absent for an
# install without a class.
LABEL_CLASS: Final = f"{GROUP}/class"
LABEL_TENANT_QUOTA_UID: Final = f"{GROUP}/tenant-quota-uid"  # on a ResourceQuota that backs one
# On a Secret that holds API keys of the gateway's clients ("true"), and the tenant to which they belong.
LABEL_API_KEYS: Final = f"{GROUP}/api-keys"
LABEL_TENANT: Final = f"{GROUP}/tenant"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_NAME: Final = "app.kubernetes.io/name"
COMPONENT_REPLICA: Final = "replica"
COMPONENT_INSPECT: Final = "inspect"
COMPONENT_TRIAL: Final = "trial"
COMPONENT_GATEWAY: Final = "gateway"
COMPONENT_OPERATOR: Final = "operator"
LABEL_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"  # the API server sets it on every namespace
MANAGED_BY: Final = "pagoda-operator"

# Hash of the object as rendered; equal hash and no drift means no request (compare, then apply).
ANNOTATION_RENDERED: Final = f"{GROUP}/rendered"
# Epoch milliseconds of the drain deadline; set before the pod is asked to drain, removed when the drain is turned back.
# On a trial whose program may need what it does not have.
ANNOTATION_ONLY_RUNS: Final = f"{GROUP}/trial-only-runs"
ANNOTATION_DRAIN_DEADLINE: Final = f"{GROUP}/drain-deadline-ms"
# What one replica is charged for by TenantQuotas: `gpu=2`, `mig-1g.10gb=1`. On its pod template.
ANNOTATION_DEVICES: Final = f"{GROUP}/devices"
# The products of GPUs that the pod may get, joined by `|`; absent if it may get any.
ANNOTATION_PRODUCTS: Final = f"{GROUP}/products"
# Of a Deployment that has one replica more than the service asks for, the successor of an unhealthy one: how many that makes.
ANNOTATION_WITH_SUCCESSOR: Final = f"{GROUP}/with-successor"
# Of a Deployment whose daemons refused the model for good before any of them served: why. It keeps no replica, and so no device.
ANNOTATION_REJECTED: Final = f"{GROUP}/rejected"
# Kubernetes' own: of pods that are alike otherwise the ReplicaSet removes the cheapest first; and the lowest cost there is.
ANNOTATION_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
LOWEST_DELETION_COST: Final = -(2**31)
# Why a replica's device is not to be trusted ("Xid 79 on GPU 3"). A device monitor writes it on a pod or a node. The
# operator reports such replicas to gateways, which send them no new request unless no other replica answers.
ANNOTATION_DEVICE_FAULT: Final = f"{GROUP}/device-fault"

# Of a revision's ConfigMap: which devices `accelerators[]` came down to, and for which list.
ANNOTATION_PLACEMENT: Final = f"{GROUP}/placement"
# Of a revision's Deployment that an operator of 0.1 named: the name it would get now. Its pods stay.

# In the operator's own namespace: kinds of nodes with devices that were there within a month, for pools without nodes.
NODE_POOLS_CONFIG_MAP: Final = "pagoda-node-pools"
NODE_POOLS_KEY: Final = "pools.json"

# In a replica's environment: the uid of its own pod, by which it knows an order that is meant for the address's last owner.
ENV_POD_UID: Final = "PAGODA_POD_UID"

FIELD_MANAGER: Final = "pagoda-operator"
# In the operator's own namespace; its transition count is the epoch that fences the control of replicas.
LEASE_OPERATOR: Final = "pagoda-operator"
DEFAULT_PROFILE: Final = "default"

# Between gateway and daemon only: believed from the gateway's role alone, dropped when they come from outside.
HEADER_PREFIX_HASHES: Final = "x-pagoda-prefix-hashes"
HEADER_TENANT: Final = "x-pagoda-tenant"
HEADER_PRIORITY: Final = "x-pagoda-priority"
HEADER_CACHE_SALT: Final = "x-pagoda-cache-salt"
HEADER_WEIGHT: Final = "x-pagoda-weight"
HEADER_TIER: Final = "x-pagoda-tier"
# Of a tenant's quota: tokens of prompts and answers that are reserved for this request, tokens of the context that it may use, and
# max_tokens of a request that sets none.
HEADER_RESERVED_TOKENS: Final = "x-pagoda-reserved-tokens"
HEADER_MAX_CONTEXT: Final = "x-pagoda-max-context"
HEADER_DEFAULT_MAX_TOKENS: Final = "x-pagoda-default-max-tokens"
# "true": the replica reports what the request used (contracts, usage.py and notes.py); in an answer: what it used.
HEADER_REPORT_USAGE: Final = "x-pagoda-report-usage"
HEADER_USAGE: Final = "x-pagoda-usage"
# In a refusal with ERROR_OVER_RESERVATION: how many tokens the request needs.
HEADER_NEEDED_TOKENS: Final = "x-pagoda-needed-tokens"
# Milliseconds from the request's arrival after which its answer is not wanted any more. Believed from every caller, since it only shortens.
HEADER_DEADLINE: Final = "x-pagoda-deadline-ms"
# A stream that continues on another replica. From a client: "never" opts out.
# From the gateway: put tokens into the notes of this stream (notes.py). In an answer with notes: CONTINUABLE_*.
# From the gateway: so many bytes at the body's end are the tokens that were answered already, as notes had them.
HEADER_CONTINUE: Final = "x-pagoda-continue"
HEADER_CONTINUABLE: Final = "x-pagoda-continuable"
HEADER_ANSWERED: Final = "x-pagoda-answered"
# Its notes have no tokens; the text is what the replica before would have given; or it may be another.
CONTINUABLE_NO: Final = "no"
CONTINUABLE_EXACT: Final = "exact"
CONTINUABLE_OTHER: Final = "other"
HEADER_ROUTE: Final = "x-pagoda-route"
# Of an answer that came from outside of the cluster: the name of the target.
HEADER_OVERFLOW: Final = "x-pagoda-overflow"
HEADER_REQUEST_ID: Final = "x-request-id"
# In an answer: fields of the request that the daemon does not know.
HEADER_IGNORED: Final = "x-pagoda-ignored"
# Of a replica's refusal: the error's code, for gateways. Bodies differ by API, and Anthropic's has no code.
HEADER_ERROR_CODE: Final = "x-pagoda-error-code"
HEADER_SHOULD_RETRY: Final = "x-should-retry"
HEADER_RETRY_AFTER: Final = "retry-after"
HEADER_RETRY_AFTER_MS: Final = "retry-after-ms"
# The endpoint picker protocol of Gateway API's inference extension: to which replica Envoy sends a request, in a header and in metadata
# of the first namespace; to which one it did; and among which ones the picker may choose, in the second namespace.
HEADER_DESTINATION: Final = "x-gateway-destination-endpoint"
METADATA_LB: Final = "envoy.lb"
METADATA_SERVED: Final = "x-gateway-destination-endpoint-served"
METADATA_SUBSET_HINT: Final = "envoy.lb.subset_hint"
METADATA_SUBSET: Final = "x-gateway-destination-endpoint-subset"
# Every header that starts so is ours; one that comes from outside is dropped at the gateway.
HEADER_INTERNAL_PREFIX: Final = "x-pagoda-"

PORT_DAEMON_HTTP: Final = 8000
PORT_DAEMON_GRPC: Final = 9000
PORT_PROBES: Final = 8081
PORT_FETCH: Final = 9001
PORT_FETCH_PROBES: Final = 8082  # 8081 is the daemon's, in the same pod
PORT_KV_EVENTS: Final = 5557
PORT_KV_REPLAY: Final = 5558
PORT_GATEWAY_HTTP: Final = 8080
PORT_METRICS: Final = 9090
PORT_DEMAND: Final = 9100
PORT_EXT_PROC: Final = 9002
PORT_EXT_PROC_HEALTH: Final = 9003  # kept for older clients; health is answered on 9002

PATH_STARTUP: Final = "/startupz"
PATH_LIVE: Final = "/livez"
PATH_READY: Final = "/readyz"
PATH_TRACE: Final = "/v1/requests/{id}/trace"
# What stands before a replica's id of a request, by the API that was asked.
ID_PREFIXES: Final = "chatcmpl-|cmpl-|resp_|msg_"

# Inside a replica's pod.
CONTAINER_DAEMON: Final = "daemon"
DAEMON_CONFIG_DIR: Final = "/etc/pagoda"
DAEMON_CONFIG_KEY: Final = "daemon.json"
CONTAINER_FETCH: Final = "fetch"
# What scaling learned of a service: a ConfigMap named after it.
HISTORY_SUFFIX: Final = "-history"
HISTORY_KEY: Final = "history.json"
MODEL_MOUNT: Final = "/models"
RUN_DIR: Final = "/run/pagoda"
# Between fetch sidecar and daemon: the link at the service's own model (its digest is known only once it is fetched), the Secrets
# of spec.credentials by name, and claims that are copied from.
FETCHED_DIR: Final = "/run/pagoda-fetch"
FETCHED_LINK: Final = f"{FETCHED_DIR}/model"
CREDENTIALS_MOUNT: Final = "/etc/pagoda-credentials"
# In the place of a credential's name, and no name itself: the cloud identity of the pod's ServiceAccount.
POD_IDENTITY: Final = "@pod"
CLAIMS_MOUNT: Final = "/claims"
# Where the sidecar keeps adapters if the daemon has the model's claim at MODEL_MOUNT.
ADAPTERS_MOUNT: Final = "/adapters"

# Exit code of a daemon or fetch sidecar whose fault no restart can cure (EX_CONFIG of sysexits.h); its termination message says why.
EXIT_PERMANENT: Final = 78

# gRPC methods of pagoda.v1: components register typed generic handlers from these.
GRPC_DAEMON: Final = "pagoda.v1.Daemon"
GRPC_WATCH_STATE: Final = f"/{GRPC_DAEMON}/WatchState"
GRPC_SET_STATE: Final = f"/{GRPC_DAEMON}/SetState"
GRPC_SET_ADAPTERS: Final = f"/{GRPC_DAEMON}/SetAdapters"
GRPC_INFERENCE: Final = "pagoda.v1.Inference"
GRPC_GENERATE: Final = f"/{GRPC_INFERENCE}/Generate"
GRPC_HEALTH: Final = "grpc.health.v1.Health"  # the standard one, for any service
GRPC_HEALTH_CHECK: Final = f"/{GRPC_HEALTH}/Check"
GRPC_HEALTH_WATCH: Final = f"/{GRPC_HEALTH}/Watch"
GRPC_DEMAND: Final = "pagoda.v1.Demand"
GRPC_WATCH_DEMAND: Final = f"/{GRPC_DEMAND}/Watch"
GRPC_KEDA: Final = "externalscaler.ExternalScaler"  # KEDA's
GRPC_EXT_PROC: Final = "envoy.service.ext_proc.v3.ExternalProcessor"  # Envoy's
GRPC_EXT_PROC_PROCESS: Final = f"/{GRPC_EXT_PROC}/Process"
GRPC_FETCH: Final = "pagoda.v1.Fetch"
GRPC_FETCH_FETCH: Final = f"/{GRPC_FETCH}/Fetch"

# Projected ServiceAccount tokens between our own processes (architecture, section 4).
TOKEN_AUDIENCE: Final = "pagoda"  # noqa: S105 (the audience, not the token)
ROLE_GATEWAY: Final = "gateway"
ROLE_OPERATOR: Final = "operator"
ROLE_METRICS: Final = "metrics"  # reads /metrics and nothing else
ROLE_ADMIN: Final = "admin"  # loads and unloads adapters of a stand-alone daemon, and nothing else
# The public keys that they are verified by: a ConfigMap in every namespace with services, mounted into its replicas.
JWKS_CONFIG_MAP: Final = "pagoda-jwks"
COMPONENT_JWKS: Final = "jwks"
JWKS_KEY: Final = "jwks.json"
JWKS_DIR: Final = "/etc/pagoda-jwks"
# The digests of clients' keys (spec.clientKeys): the Secret's entry, and where a replica has it.
CLIENT_KEYS_KEY: Final = "keys"
CLIENT_KEYS_DIR: Final = "/etc/pagoda-client-keys"
PATH_JWKS: Final = "/openid/v1/jwks"  # of the API server

# Pushed state (architecture, section 4): floor between frames, heartbeat, and what silence means.
STATE_FLOOR_MS: Final = 100
STATE_HEARTBEAT_MS: Final = 500
STATE_SUSPECT_MS: Final = 1_000
STATE_DEAD_MS: Final = 3_000
# A step is stuck after so many ms, or so many times its predicted length, whichever is more: a first step compiles.
STEP_STUCK_MS: Final = 30_000
STEP_STUCK_TIMES: Final = 20

# A service's name leaves room for the children's suffix "-<10 hex>" and the pods' "-<10>-<5>" in 63 characters.
MAX_SERVICE_NAME: Final = 35

ERROR_DRAINING: Final = "draining"
ERROR_NOT_READY: Final = "not_ready"
ERROR_OVERLOADED: Final = "overloaded"
ERROR_OVER_RESERVATION: Final = "over_reservation"
ERROR_ENGINE_DIED: Final = "engine_died"
ERROR_CANNOT_CONTINUE: Final = "cannot_continue"
ERROR_DEADLINE: Final = "deadline_exceeded"
ERROR_MODEL_NOT_FOUND: Final = "model_not_found"
ERROR_UNSUPPORTED: Final = "unsupported"
ERROR_UNSUPPORTED_ENDPOINT: Final = "unsupported_endpoint"
ERROR_UNAUTHENTICATED: Final = "invalid_api_key"  # OpenAI's word
ERROR_FORBIDDEN: Final = "permission_denied"

# GPU Feature Discovery, MIG manager and dynamic resource allocation, as others write them.
RESOURCE_GPU: Final = "nvidia.com/gpu"
RESOURCE_MIG_PREFIX: Final = "nvidia.com/mig-"
LABEL_GPU_PRODUCT: Final = "nvidia.com/gpu.product"
LABEL_GPU_COUNT: Final = "nvidia.com/gpu.count"
LABEL_GPU_MEMORY: Final = "nvidia.com/gpu.memory"  # MiB
LABEL_MIG_CAPABLE: Final = "nvidia.com/mig.capable"
LABEL_MIG_STRATEGY: Final = "nvidia.com/mig.strategy"
LABEL_MIG_CONFIG: Final = "nvidia.com/mig.config"
LABEL_MIG_CONFIG_STATE: Final = "nvidia.com/mig.config.state"
LABEL_GPU_REPLICAS: Final = "nvidia.com/gpu.replicas"  # above 1: shared by time-slicing or MPS
# What CUDA version the node's driver offers, and the driver's own; GPU Feature Discovery writes new and old spelling.
LABEL_CUDA: Final = ("nvidia.com/cuda.runtime-version", "nvidia.com/cuda.runtime")
LABEL_DRIVER: Final = ("nvidia.com/cuda.driver-version", "nvidia.com/cuda.driver")
MIG_DISABLED: Final = "all-disabled"
MIG_INVALID: Final = "-MIG-INVALID"  # ends the product under strategy `single` where the GPUs' partitions are not alike
# CUDA version that the driver must offer, where a profile says nothing: that of the torch which the daemon's image holds.
DAEMON_CUDA: Final = "13.0"
DEVICE_CLASS_GPU: Final = "gpu.nvidia.com"
DEVICE_CLASS_MIG: Final = "mig.nvidia.com"
QUOTA_BY_CLASS: Final = ".deviceclass.resource.k8s.io/devices"  # after a DeviceClass's name: what a ResourceQuota counts its claims by
LABEL_KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
LABEL_ENGINE_TYPE: Final = "llm-d.ai/engine-type"
ENGINE_TYPE: Final = "vllm"  # whose metric names ours are


def of_class(service_class: str, *terms: str) -> str:
    """Returns a label selector: the terms, and only what is of this class. An empty class selects what has none."""
    return ",".join((*terms, f"{LABEL_CLASS}={service_class}" if service_class else f"!{LABEL_CLASS}"))


def subjects_key(service_class: str = "") -> str:
    """Returns the file beside the token keys with the accounts of the installation that runs now, because another one may have made the
    replicas. Each class has its own: two installations write side by side."""
    return f"subjects.{service_class}.json" if service_class else "subjects.json"
