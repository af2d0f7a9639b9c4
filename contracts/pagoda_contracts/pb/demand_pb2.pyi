from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_FRESH: _ClassVar[Verdict]
    VERDICT_SUSPECT: _ClassVar[Verdict]
    VERDICT_DEAD: _ClassVar[Verdict]
VERDICT_UNSPECIFIED: Verdict
VERDICT_FRESH: Verdict
VERDICT_SUSPECT: Verdict
VERDICT_DEAD: Verdict

class WatchDemandRequest(_message.Message):
    __slots__ = ("watcher", "services")
    WATCHER_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    watcher: str
    services: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, watcher: _Optional[str] = ..., services: _Optional[_Iterable[str]] = ...) -> None: ...

class EndpointDemand(_message.Message):
    __slots__ = ("pod", "revision", "verdict", "reason", "in_flight", "draining", "phase", "state_age_ms", "deep_check_failed", "warm_ms", "device_fault")
    POD_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STATE_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    DEEP_CHECK_FAILED_FIELD_NUMBER: _ClassVar[int]
    WARM_MS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FAULT_FIELD_NUMBER: _ClassVar[int]
    pod: str
    revision: str
    verdict: Verdict
    reason: str
    in_flight: int
    draining: bool
    phase: int
    state_age_ms: int
    deep_check_failed: bool
    warm_ms: int
    device_fault: str
    def __init__(self, pod: _Optional[str] = ..., revision: _Optional[str] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., reason: _Optional[str] = ..., in_flight: _Optional[int] = ..., draining: _Optional[bool] = ..., phase: _Optional[int] = ..., state_age_ms: _Optional[int] = ..., deep_check_failed: _Optional[bool] = ..., warm_ms: _Optional[int] = ..., device_fault: _Optional[str] = ...) -> None: ...

class RevisionDemand(_message.Message):
    __slots__ = ("revision", "requests", "errors", "ttft_p95_ms")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    TTFT_P95_MS_FIELD_NUMBER: _ClassVar[int]
    revision: str
    requests: int
    errors: int
    ttft_p95_ms: int
    def __init__(self, revision: _Optional[str] = ..., requests: _Optional[int] = ..., errors: _Optional[int] = ..., ttft_p95_ms: _Optional[int] = ...) -> None: ...

class ServiceDemand(_message.Message):
    __slots__ = ("namespace", "name", "held", "oldest_held_ms", "wake", "running", "waiting", "waiting_tokens", "in_flight", "blocks_used", "blocks_total", "requests_per_second", "ttft_p95_ms", "idle_ms", "error_rate", "endpoints", "revisions", "requests_arrived", "requests_ended", "kv_utilization")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    OLDEST_HELD_MS_FIELD_NUMBER: _ClassVar[int]
    WAKE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    TTFT_P95_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_RATE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    REVISIONS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_ARRIVED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_ENDED_FIELD_NUMBER: _ClassVar[int]
    KV_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    held: int
    oldest_held_ms: int
    wake: bool
    running: int
    waiting: int
    waiting_tokens: int
    in_flight: int
    blocks_used: int
    blocks_total: int
    requests_per_second: float
    ttft_p95_ms: int
    idle_ms: int
    error_rate: float
    endpoints: _containers.RepeatedCompositeFieldContainer[EndpointDemand]
    revisions: _containers.RepeatedCompositeFieldContainer[RevisionDemand]
    requests_arrived: int
    requests_ended: int
    kv_utilization: float
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., held: _Optional[int] = ..., oldest_held_ms: _Optional[int] = ..., wake: _Optional[bool] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., in_flight: _Optional[int] = ..., blocks_used: _Optional[int] = ..., blocks_total: _Optional[int] = ..., requests_per_second: _Optional[float] = ..., ttft_p95_ms: _Optional[int] = ..., idle_ms: _Optional[int] = ..., error_rate: _Optional[float] = ..., endpoints: _Optional[_Iterable[_Union[EndpointDemand, _Mapping]]] = ..., revisions: _Optional[_Iterable[_Union[RevisionDemand, _Mapping]]] = ..., requests_arrived: _Optional[int] = ..., requests_ended: _Optional[int] = ..., kv_utilization: _Optional[float] = ...) -> None: ...

class QuotaUsage(_message.Message):
    __slots__ = ("quota", "window_ms", "start_unix_ms", "requests", "tokens")
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    WINDOW_MS_FIELD_NUMBER: _ClassVar[int]
    START_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    quota: str
    window_ms: int
    start_unix_ms: int
    requests: int
    tokens: int
    def __init__(self, quota: _Optional[str] = ..., window_ms: _Optional[int] = ..., start_unix_ms: _Optional[int] = ..., requests: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class QuotaReport(_message.Message):
    __slots__ = ("windows",)
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    windows: _containers.RepeatedCompositeFieldContainer[QuotaUsage]
    def __init__(self, windows: _Optional[_Iterable[_Union[QuotaUsage, _Mapping]]] = ...) -> None: ...

class Demand(_message.Message):
    __slots__ = ("gateway", "sequence", "sent_at_ms", "full", "services", "peers", "quotas")
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    gateway: str
    sequence: int
    sent_at_ms: int
    full: bool
    services: _containers.RepeatedCompositeFieldContainer[ServiceDemand]
    peers: int
    quotas: QuotaReport
    def __init__(self, gateway: _Optional[str] = ..., sequence: _Optional[int] = ..., sent_at_ms: _Optional[int] = ..., full: _Optional[bool] = ..., services: _Optional[_Iterable[_Union[ServiceDemand, _Mapping]]] = ..., peers: _Optional[int] = ..., quotas: _Optional[_Union[QuotaReport, _Mapping]] = ...) -> None: ...
