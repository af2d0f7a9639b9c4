from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FetchPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FETCH_PHASE_UNSPECIFIED: _ClassVar[FetchPhase]
    FETCH_PHASE_RESOLVING: _ClassVar[FetchPhase]
    FETCH_PHASE_FETCHING: _ClassVar[FetchPhase]
    FETCH_PHASE_VERIFYING: _ClassVar[FetchPhase]
    FETCH_PHASE_DONE: _ClassVar[FetchPhase]
    FETCH_PHASE_FAILED: _ClassVar[FetchPhase]
FETCH_PHASE_UNSPECIFIED: FetchPhase
FETCH_PHASE_RESOLVING: FetchPhase
FETCH_PHASE_FETCHING: FetchPhase
FETCH_PHASE_VERIFYING: FetchPhase
FETCH_PHASE_DONE: FetchPhase
FETCH_PHASE_FAILED: FetchPhase

class FetchRequest(_message.Message):
    __slots__ = ("uri", "revision", "digest", "credential")
    URI_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    uri: str
    revision: str
    digest: str
    credential: str
    def __init__(self, uri: _Optional[str] = ..., revision: _Optional[str] = ..., digest: _Optional[str] = ..., credential: _Optional[str] = ...) -> None: ...

class FetchProgress(_message.Message):
    __slots__ = ("phase", "bytes_done", "bytes_total", "digest", "path", "error", "retryable")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    phase: FetchPhase
    bytes_done: int
    bytes_total: int
    digest: str
    path: str
    error: str
    retryable: bool
    def __init__(self, phase: _Optional[_Union[FetchPhase, str]] = ..., bytes_done: _Optional[int] = ..., bytes_total: _Optional[int] = ..., digest: _Optional[str] = ..., path: _Optional[str] = ..., error: _Optional[str] = ..., retryable: _Optional[bool] = ...) -> None: ...
