from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_STARTING: _ClassVar[Phase]
    PHASE_LOADING: _ClassVar[Phase]
    PHASE_WARMING: _ClassVar[Phase]
    PHASE_READY: _ClassVar[Phase]
    PHASE_DRAINING: _ClassVar[Phase]
    PHASE_STOPPED: _ClassVar[Phase]
    PHASE_DEGRADED: _ClassVar[Phase]

class AdapterPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADAPTER_PHASE_UNSPECIFIED: _ClassVar[AdapterPhase]
    ADAPTER_PHASE_KNOWN: _ClassVar[AdapterPhase]
    ADAPTER_PHASE_FETCHING: _ClassVar[AdapterPhase]
    ADAPTER_PHASE_LOADED: _ClassVar[AdapterPhase]
    ADAPTER_PHASE_FAILED: _ClassVar[AdapterPhase]
    ADAPTER_PHASE_ON_DISK: _ClassVar[AdapterPhase]

class Target(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TARGET_UNSPECIFIED: _ClassVar[Target]
    TARGET_SERVING: _ClassVar[Target]
    TARGET_DRAINING: _ClassVar[Target]
PHASE_UNSPECIFIED: Phase
PHASE_STARTING: Phase
PHASE_LOADING: Phase
PHASE_WARMING: Phase
PHASE_READY: Phase
PHASE_DRAINING: Phase
PHASE_STOPPED: Phase
PHASE_DEGRADED: Phase
ADAPTER_PHASE_UNSPECIFIED: AdapterPhase
ADAPTER_PHASE_KNOWN: AdapterPhase
ADAPTER_PHASE_FETCHING: AdapterPhase
ADAPTER_PHASE_LOADED: AdapterPhase
ADAPTER_PHASE_FAILED: AdapterPhase
ADAPTER_PHASE_ON_DISK: AdapterPhase
TARGET_UNSPECIFIED: Target
TARGET_SERVING: Target
TARGET_DRAINING: Target

class WatchStateRequest(_message.Message):
    __slots__ = ("watcher", "interval_ms", "no_prefixes")
    WATCHER_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    NO_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    watcher: str
    interval_ms: int
    no_prefixes: bool
    def __init__(self, watcher: _Optional[str] = ..., interval_ms: _Optional[int] = ..., no_prefixes: _Optional[bool] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("sequence", "sent_at_ms", "phase", "version", "served_names", "revision", "running", "waiting", "waiting_tokens", "in_flight", "max_concurrency", "preparing", "prefill_tokens", "requests_admitted", "requests_ended", "blocks_used", "blocks_free", "blocks_total", "block_size", "blocks_cached", "engine_heartbeat_age_ms", "step_age_ms", "predicted_step_ms", "load_progress", "adapters", "adapters_generation", "prefixes_resident", "prefixes_evicted", "prefix_reset", "drain_deadline_unix_ms", "epoch", "deep_check_age_ms", "deep_check_failed", "device_fault", "ttft_p95_ms", "tokens_per_second", "step_base_us", "step_token_us", "step_row_us", "warm_ms")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVED_NAMES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    PREPARING_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_ADMITTED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_ENDED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    ENGINE_HEARTBEAT_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    STEP_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_STEP_MS_FIELD_NUMBER: _ClassVar[int]
    LOAD_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_GENERATION_FIELD_NUMBER: _ClassVar[int]
    PREFIXES_RESIDENT_FIELD_NUMBER: _ClassVar[int]
    PREFIXES_EVICTED_FIELD_NUMBER: _ClassVar[int]
    PREFIX_RESET_FIELD_NUMBER: _ClassVar[int]
    DRAIN_DEADLINE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DEEP_CHECK_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    DEEP_CHECK_FAILED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FAULT_FIELD_NUMBER: _ClassVar[int]
    TTFT_P95_MS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    STEP_BASE_US_FIELD_NUMBER: _ClassVar[int]
    STEP_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    STEP_ROW_US_FIELD_NUMBER: _ClassVar[int]
    WARM_MS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    sent_at_ms: int
    phase: Phase
    version: str
    served_names: _containers.RepeatedScalarFieldContainer[str]
    revision: str
    running: int
    waiting: int
    waiting_tokens: int
    in_flight: int
    max_concurrency: int
    preparing: int
    prefill_tokens: int
    requests_admitted: int
    requests_ended: int
    blocks_used: int
    blocks_free: int
    blocks_total: int
    block_size: int
    blocks_cached: int
    engine_heartbeat_age_ms: int
    step_age_ms: int
    predicted_step_ms: int
    load_progress: float
    adapters: _containers.RepeatedCompositeFieldContainer[AdapterState]
    adapters_generation: int
    prefixes_resident: _containers.RepeatedScalarFieldContainer[bytes]
    prefixes_evicted: _containers.RepeatedScalarFieldContainer[bytes]
    prefix_reset: bool
    drain_deadline_unix_ms: int
    epoch: int
    deep_check_age_ms: int
    deep_check_failed: bool
    device_fault: str
    ttft_p95_ms: int
    tokens_per_second: float
    step_base_us: float
    step_token_us: float
    step_row_us: float
    warm_ms: int
    def __init__(self, sequence: _Optional[int] = ..., sent_at_ms: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., version: _Optional[str] = ..., served_names: _Optional[_Iterable[str]] = ..., revision: _Optional[str] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., in_flight: _Optional[int] = ..., max_concurrency: _Optional[int] = ..., preparing: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., requests_admitted: _Optional[int] = ..., requests_ended: _Optional[int] = ..., blocks_used: _Optional[int] = ..., blocks_free: _Optional[int] = ..., blocks_total: _Optional[int] = ..., block_size: _Optional[int] = ..., blocks_cached: _Optional[int] = ..., engine_heartbeat_age_ms: _Optional[int] = ..., step_age_ms: _Optional[int] = ..., predicted_step_ms: _Optional[int] = ..., load_progress: _Optional[float] = ..., adapters: _Optional[_Iterable[_Union[AdapterState, _Mapping]]] = ..., adapters_generation: _Optional[int] = ..., prefixes_resident: _Optional[_Iterable[bytes]] = ..., prefixes_evicted: _Optional[_Iterable[bytes]] = ..., prefix_reset: _Optional[bool] = ..., drain_deadline_unix_ms: _Optional[int] = ..., epoch: _Optional[int] = ..., deep_check_age_ms: _Optional[int] = ..., deep_check_failed: _Optional[bool] = ..., device_fault: _Optional[str] = ..., ttft_p95_ms: _Optional[int] = ..., tokens_per_second: _Optional[float] = ..., step_base_us: _Optional[float] = ..., step_token_us: _Optional[float] = ..., step_row_us: _Optional[float] = ..., warm_ms: _Optional[int] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "digest", "uri", "credential", "pinned", "on_demand")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    uri: str
    credential: str
    pinned: bool
    on_demand: bool
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., uri: _Optional[str] = ..., credential: _Optional[str] = ..., pinned: _Optional[bool] = ..., on_demand: _Optional[bool] = ...) -> None: ...

class AdapterState(_message.Message):
    __slots__ = ("name", "digest", "phase", "reason", "running")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    phase: AdapterPhase
    reason: str
    running: int
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., phase: _Optional[_Union[AdapterPhase, str]] = ..., reason: _Optional[str] = ..., running: _Optional[int] = ...) -> None: ...

class SetStateRequest(_message.Message):
    __slots__ = ("target", "deadline_unix_ms", "epoch", "pod_uid", "remaining_ms")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    target: Target
    deadline_unix_ms: int
    epoch: int
    pod_uid: str
    remaining_ms: int
    def __init__(self, target: _Optional[_Union[Target, str]] = ..., deadline_unix_ms: _Optional[int] = ..., epoch: _Optional[int] = ..., pod_uid: _Optional[str] = ..., remaining_ms: _Optional[int] = ...) -> None: ...

class SetStateResponse(_message.Message):
    __slots__ = ("phase", "in_flight", "deadline_unix_ms", "epoch")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    phase: Phase
    in_flight: int
    deadline_unix_ms: int
    epoch: int
    def __init__(self, phase: _Optional[_Union[Phase, str]] = ..., in_flight: _Optional[int] = ..., deadline_unix_ms: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class SetAdaptersRequest(_message.Message):
    __slots__ = ("adapters", "generation", "epoch", "pod_uid")
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedCompositeFieldContainer[Adapter]
    generation: int
    epoch: int
    pod_uid: str
    def __init__(self, adapters: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ..., generation: _Optional[int] = ..., epoch: _Optional[int] = ..., pod_uid: _Optional[str] = ...) -> None: ...

class SetAdaptersResponse(_message.Message):
    __slots__ = ("generation", "adapters")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    adapters: _containers.RepeatedCompositeFieldContainer[AdapterState]
    def __init__(self, generation: _Optional[int] = ..., adapters: _Optional[_Iterable[_Union[AdapterState, _Mapping]]] = ...) -> None: ...
