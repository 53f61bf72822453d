"""The methods of an executor as values, so that every transport calls them in the same way."""

import re
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from assay.sandbox.rpc.messages import egress_pb2
from assay.sandbox.rpc.messages import executor_pb2 as pb

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

_WORD_BEGINNING: Final = re.compile(r"(?<!^)(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """One method of the service `assay.executor.v1.Executor`, or one that a sandbox calls."""

    name: str
    request: type[Request]
    response: type[Response]
    streams_requests: bool = False
    streams_responses: bool = False

    @property
    def attribute(self) -> str:
        """The name of the Python method that carries it out: `OpenSandbox`, `open_sandbox`."""
        return _WORD_BEGINNING.sub("_", self.name).lower()


METHODS: Final[tuple[Method[Any, Any], ...]] = tuple(
    Method(
        method.name,
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
        method.client_streaming,
        method.server_streaming,
    )
    for method in pb.DESCRIPTOR.services_by_name["Executor"].methods
)
_BY_NAME: Final = {method.name: method for method in METHODS}


def _find(name: str, request: type[Request], response: type[Response]) -> Method[Request, Response]:
    found = _BY_NAME[name]
    assert (found.request, found.response) == (request, response), name  # noqa: S101 - at import
    return found


GET_CAPABILITIES: Final = _find("GetCapabilities", pb.GetCapabilitiesRequest, pb.Capabilities)
OPEN_SANDBOX: Final = _find("OpenSandbox", pb.OpenSandboxRequest, pb.OpenSandboxResponse)
CLOSE_SANDBOX: Final = _find("CloseSandbox", pb.CloseSandboxRequest, pb.CloseSandboxResponse)
RENEW_SANDBOXES: Final = _find(
    "RenewSandboxes", pb.RenewSandboxesRequest, pb.RenewSandboxesResponse
)
EXECUTE: Final = _find("Execute", pb.ExecuteRequest, pb.ExecutionResult)
EXECUTE_STREAM: Final = _find("ExecuteStream", pb.ExecuteRequest, pb.ExecutionEvent)
ATTACH_STREAM: Final = _find("AttachStream", pb.AttachStreamRequest, pb.ExecutionEvent)
STOP_EXECUTION: Final = _find("StopExecution", pb.StopExecutionRequest, pb.StopExecutionResponse)
CANCEL_EXECUTIONS: Final = _find(
    "CancelExecutions", pb.CancelExecutionsRequest, pb.CancelExecutionsResponse
)
WRITE_FILE: Final = _find("WriteFile", pb.WriteFileRequest, pb.WriteFileResponse)
READ_FILE: Final = _find("ReadFile", pb.ReadFileRequest, pb.ReadFileResponse)
LIST_FILES: Final = _find("ListFiles", pb.ListFilesRequest, pb.ListFilesResponse)
MAKE_DIRECTORY: Final = _find("MakeDirectory", pb.MakeDirectoryRequest, pb.MakeDirectoryResponse)
REMOVE_PATH: Final = _find("RemovePath", pb.RemovePathRequest, pb.RemovePathResponse)
FIND_CHANGES: Final = _find("FindChanges", pb.FindChangesRequest, pb.FindChangesResponse)
OFFER_LAYER: Final = _find("OfferLayer", pb.OfferLayerRequest, pb.OfferLayerResponse)
PUT_BLOBS: Final = _find("PutBlobs", pb.PutBlobsRequest, pb.PutBlobsResponse)
OPEN_INTERPRETER: Final = _find(
    "OpenInterpreter", pb.OpenInterpreterRequest, pb.OpenInterpreterResponse
)
BRANCH_INTERPRETER: Final = _find(
    "BranchInterpreter", pb.BranchInterpreterRequest, pb.BranchInterpreterResponse
)
CLOSE_INTERPRETER: Final = _find(
    "CloseInterpreter", pb.CloseInterpreterRequest, pb.CloseInterpreterResponse
)
RUN_CELL: Final = _find("RunCell", pb.RunCellRequest, pb.ExecutionEvent)
INTERRUPT_CELL: Final = _find("InterruptCell", pb.InterruptCellRequest, pb.InterruptCellResponse)

LOOK_UP: Final = Method("LookUp", egress_pb2.LookUpRequest, egress_pb2.LookUpResponse)
DIAL: Final = Method(
    "Dial",
    egress_pb2.DialRequest,
    egress_pb2.DialResponse,
    streams_requests=True,
    streams_responses=True,
)

EGRESS_METHODS: Final = (LOOK_UP, DIAL)
"""The methods that a sandbox calls on the side that decides which hosts it may reach."""
