"""gRPC health protocol: whether an executor accepts requests."""

from typing import Any, Final, cast

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

_SERVING: Final = cast("Any", health_pb2).HealthCheckResponse.SERVING
HEALTH_SERVICE: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class Health:
    """Health service of an executor; reports SERVING until `end`."""

    def __init__(self, server: grpc.aio.Server) -> None:
        # The type stubs of this library lack its asynchronous half.
        self._state = cast("Any", health).aio.HealthServicer()
        cast("Any", health_pb2_grpc).add_HealthServicer_to_server(self._state, server)

    async def begin(self, *services: str) -> None:
        """Report SERVING for these names too; the empty name, the whole server, always exists."""
        for name in services:
            await self._state.set(name, _SERVING)

    async def end(self) -> None:
        """Report NOT_SERVING to all watching clients."""
        await self._state.enter_graceful_shutdown()
