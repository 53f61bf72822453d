from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LookUpRequest(_message.Message):
    __slots__ = ("host",)
    HOST_FIELD_NUMBER: _ClassVar[int]
    host: str
    def __init__(self, host: _Optional[str] = ...) -> None: ...

class LookUpResponse(_message.Message):
    __slots__ = ("addresses", "refusal")
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    refusal: Refusal
    def __init__(self, addresses: _Optional[_Iterable[str]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class DialRequest(_message.Message):
    __slots__ = ("host", "port", "data")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    data: bytes
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class DialResponse(_message.Message):
    __slots__ = ("refusal", "data")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    refusal: Refusal
    data: bytes
    def __init__(self, refusal: _Optional[_Union[Refusal, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("kind", "why")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Refusal.Kind]
        KIND_DENIED: _ClassVar[Refusal.Kind]
        KIND_NO_SUCH_HOST: _ClassVar[Refusal.Kind]
        KIND_FAILED: _ClassVar[Refusal.Kind]
    KIND_UNSPECIFIED: Refusal.Kind
    KIND_DENIED: Refusal.Kind
    KIND_NO_SUCH_HOST: Refusal.Kind
    KIND_FAILED: Refusal.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    kind: Refusal.Kind
    why: str
    def __init__(self, kind: _Optional[_Union[Refusal.Kind, str]] = ..., why: _Optional[str] = ...) -> None: ...
