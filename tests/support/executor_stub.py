"""Client of an executor without anything of Assay's client: one method per call of the service."""

from typing import Any

from google.protobuf.message_factory import GetMessageClass

from assay.sandbox.rpc.messages import executor_pb2


class ExecutorStub:
    """What the gRPC compiler would generate from the definition of the service."""

    def __init__(self, channel: Any) -> None:
        service = executor_pb2.DESCRIPTOR.services_by_name["Executor"]
        for method in service.methods:
            kind = "_".join(
                "stream" if streams else "unary"
                for streams in (method.client_streaming, method.server_streaming)
            )
            call = getattr(channel, kind)(
                f"/{service.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)
