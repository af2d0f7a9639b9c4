from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
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
PHASE_UNSPECIFIED: Phase
PHASE_STARTING: Phase
PHASE_LOADING: Phase
PHASE_WARMING: Phase
PHASE_READY: Phase
PHASE_DRAINING: Phase
PHASE_STOPPED: Phase
PHASE_DEGRADED: Phase

class WatchStateRequest(_message.Message):
    __slots__ = ("watcher",)
    WATCHER_FIELD_NUMBER: _ClassVar[int]
    watcher: str
    def __init__(self, watcher: _Optional[str] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("sequence", "sent_at_ms", "phase", "version", "served_names", "revision", "running", "waiting", "waiting_tokens", "in_flight", "max_concurrency", "blocks_used", "blocks_free", "blocks_total", "block_size", "engine_heartbeat_age_ms", "step_age_ms", "predicted_step_ms", "load_progress")
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
    BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_HEARTBEAT_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    STEP_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_STEP_MS_FIELD_NUMBER: _ClassVar[int]
    LOAD_PROGRESS_FIELD_NUMBER: _ClassVar[int]
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
    blocks_used: int
    blocks_free: int
    blocks_total: int
    block_size: int
    engine_heartbeat_age_ms: int
    step_age_ms: int
    predicted_step_ms: int
    load_progress: float
    def __init__(self, sequence: _Optional[int] = ..., sent_at_ms: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., version: _Optional[str] = ..., served_names: _Optional[_Iterable[str]] = ..., revision: _Optional[str] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., in_flight: _Optional[int] = ..., max_concurrency: _Optional[int] = ..., blocks_used: _Optional[int] = ..., blocks_free: _Optional[int] = ..., blocks_total: _Optional[int] = ..., block_size: _Optional[int] = ..., engine_heartbeat_age_ms: _Optional[int] = ..., step_age_ms: _Optional[int] = ..., predicted_step_ms: _Optional[int] = ..., load_progress: _Optional[float] = ...) -> None: ...
