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
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_NAME: Final = "app.kubernetes.io/name"
COMPONENT_REPLICA: Final = "replica"
MANAGED_BY: Final = "pagoda-operator"

# Hash of the object as rendered; equal hash and no drift means no request (compare, then apply).
ANNOTATION_RENDERED: Final = f"{GROUP}/rendered"
# Epoch milliseconds of the drain deadline; set before the pod is asked to drain, removed when the drain is turned back.
ANNOTATION_DRAIN_DEADLINE: Final = f"{GROUP}/drain-deadline-ms"

FIELD_MANAGER: Final = "pagoda-operator"
DEFAULT_PROFILE: Final = "default"

# Between gateway and daemon only: believed from the gateway's role alone, dropped when they come from outside.
HEADER_PREFIX_HASHES: Final = "x-pagoda-prefix-hashes"
HEADER_TENANT: Final = "x-pagoda-tenant"
HEADER_PRIORITY: Final = "x-pagoda-priority"
HEADER_CACHE_SALT: Final = "x-pagoda-cache-salt"
HEADER_ROUTE: Final = "x-pagoda-route"
HEADER_REQUEST_ID: Final = "x-request-id"
HEADER_SHOULD_RETRY: Final = "x-should-retry"
HEADER_RETRY_AFTER: Final = "retry-after"
# Every header that starts so is ours; one that comes from outside is dropped at the gateway.
HEADER_INTERNAL_PREFIX: Final = "x-pagoda-"

PORT_DAEMON_HTTP: Final = 8000
PORT_DAEMON_GRPC: Final = 9000
PORT_PROBES: Final = 8081
PORT_FETCH: Final = 9001
PORT_KV_EVENTS: Final = 5557
PORT_GATEWAY_HTTP: Final = 8080
PORT_METRICS: Final = 9090
PORT_DEMAND: Final = 9100
PORT_EXT_PROC: Final = 9002
PORT_EXT_PROC_HEALTH: Final = 9003

PATH_STARTUP: Final = "/startupz"
PATH_LIVE: Final = "/livez"
PATH_READY: Final = "/readyz"

# Inside a replica's pod.
CONTAINER_DAEMON: Final = "daemon"
DAEMON_CONFIG_DIR: Final = "/etc/pagoda"
DAEMON_CONFIG_KEY: Final = "daemon.json"
MODEL_MOUNT: Final = "/models"
RUN_DIR: Final = "/run/pagoda"

# Exit code of a daemon whose fault no restart can cure (EX_CONFIG of sysexits.h); its reason is in the termination message.
EXIT_PERMANENT: Final = 78

# gRPC methods of pagoda.v1: doors register typed generic handlers from these.
GRPC_DAEMON: Final = "pagoda.v1.Daemon"
GRPC_WATCH_STATE: Final = f"/{GRPC_DAEMON}/WatchState"
GRPC_SET_STATE: Final = f"/{GRPC_DAEMON}/SetState"
GRPC_SET_ADAPTERS: Final = f"/{GRPC_DAEMON}/SetAdapters"
GRPC_INFERENCE: Final = "pagoda.v1.Inference"
GRPC_GENERATE: Final = f"/{GRPC_INFERENCE}/Generate"
GRPC_DEMAND: Final = "pagoda.v1.Demand"
GRPC_WATCH_DEMAND: Final = f"/{GRPC_DEMAND}/Watch"
GRPC_FETCH: Final = "pagoda.v1.Fetch"
GRPC_FETCH_FETCH: Final = f"/{GRPC_FETCH}/Fetch"

# Projected ServiceAccount tokens between our own processes (architecture, section 4).
TOKEN_AUDIENCE: Final = "pagoda"  # noqa: S105 (the audience, not the token)
ROLE_GATEWAY: Final = "gateway"
ROLE_OPERATOR: Final = "operator"

# Pushed state (architecture, section 4): floor between frames, heartbeat, and what silence means.
STATE_FLOOR_MS: Final = 100
STATE_HEARTBEAT_MS: Final = 500
STATE_SUSPECT_MS: Final = 1_000
STATE_DEAD_MS: Final = 3_000

# A service's name leaves room for the children's suffix "-<10 hex>" and the pods' "-<10>-<5>" in 63 characters.
MAX_SERVICE_NAME: Final = 35

ERROR_DRAINING: Final = "draining"
ERROR_NOT_READY: Final = "not_ready"
ERROR_OVERLOADED: Final = "overloaded"
ERROR_ENGINE_DIED: Final = "engine_died"
ERROR_MODEL_NOT_FOUND: Final = "model_not_found"
ERROR_UNSUPPORTED: Final = "unsupported"

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
DEVICE_CLASS_GPU: Final = "gpu.nvidia.com"
DEVICE_CLASS_MIG: Final = "mig.nvidia.com"
LABEL_KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
LABEL_ENGINE_TYPE: Final = "llm-d.ai/engine-type"
ENGINE_TYPE: Final = "vllm"  # whose metric names ours are
