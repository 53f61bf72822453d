"""The methods of an executor as values, so that every transport calls them in the same way."""

import re
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

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


GET_CAPABILITIES: Final = Method("GetCapabilities", pb.GetCapabilitiesRequest, pb.Capabilities)
OPEN_SANDBOX: Final = Method("OpenSandbox", pb.OpenSandboxRequest, pb.OpenSandboxResponse)
CLOSE_SANDBOX: Final = Method("CloseSandbox", pb.CloseSandboxRequest, pb.CloseSandboxResponse)
RENEW_SANDBOXES: Final = Method(
    "RenewSandboxes", pb.RenewSandboxesRequest, pb.RenewSandboxesResponse
)
EXECUTE: Final = Method("Execute", pb.ExecuteRequest, pb.ExecutionResult)
EXECUTE_STREAM: Final = Method(
    "ExecuteStream", pb.ExecuteRequest, pb.ExecutionEvent, streams_responses=True
)
ATTACH_STREAM: Final = Method(
    "AttachStream", pb.AttachStreamRequest, pb.ExecutionEvent, streams_responses=True
)
STOP_EXECUTION: Final = Method("StopExecution", pb.StopExecutionRequest, pb.StopExecutionResponse)
CANCEL_EXECUTIONS: Final = Method(
    "CancelExecutions", pb.CancelExecutionsRequest, pb.CancelExecutionsResponse
)
WRITE_FILE: Final = Method(
    "WriteFile", pb.WriteFileRequest, pb.WriteFileResponse, streams_requests=True
)
READ_FILE: Final = Method(
    "ReadFile", pb.ReadFileRequest, pb.ReadFileResponse, streams_responses=True
)
LIST_FILES: Final = Method(
    "ListFiles", pb.ListFilesRequest, pb.ListFilesResponse, streams_responses=True
)
MAKE_DIRECTORY: Final = Method("MakeDirectory", pb.MakeDirectoryRequest, pb.MakeDirectoryResponse)
REMOVE_PATH: Final = Method("RemovePath", pb.RemovePathRequest, pb.RemovePathResponse)
OPEN_INTERPRETER: Final = Method(
    "OpenInterpreter", pb.OpenInterpreterRequest, pb.OpenInterpreterResponse
)
BRANCH_INTERPRETER: Final = Method(
    "BranchInterpreter", pb.BranchInterpreterRequest, pb.BranchInterpreterResponse
)
CLOSE_INTERPRETER: Final = Method(
    "CloseInterpreter", pb.CloseInterpreterRequest, pb.CloseInterpreterResponse
)
RUN_CELL: Final = Method("RunCell", pb.RunCellRequest, pb.ExecutionEvent, streams_responses=True)
INTERRUPT_CELL: Final = Method("InterruptCell", pb.InterruptCellRequest, pb.InterruptCellResponse)

METHODS: Final = (
    GET_CAPABILITIES,
    OPEN_SANDBOX,
    CLOSE_SANDBOX,
    RENEW_SANDBOXES,
    EXECUTE,
    EXECUTE_STREAM,
    ATTACH_STREAM,
    STOP_EXECUTION,
    CANCEL_EXECUTIONS,
    WRITE_FILE,
    READ_FILE,
    LIST_FILES,
    MAKE_DIRECTORY,
    REMOVE_PATH,
    OPEN_INTERPRETER,
    BRANCH_INTERPRETER,
    CLOSE_INTERPRETER,
    RUN_CELL,
    INTERRUPT_CELL,
)

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
