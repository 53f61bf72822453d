"""Says over the gRPC health protocol whether an executor takes requests."""

from typing import Any, Final, cast

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

_SERVING: Final = cast("Any", health_pb2).HealthCheckResponse.SERVING
HEALTH_SERVICE: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class Health:
    """Serving until it is told otherwise."""

    def __init__(self, server: grpc.aio.Server) -> None:
        # What is known of the types of this library leaves its asynchronous half out.
        self._state = cast("Any", health).aio.HealthServicer()
        cast("Any", health_pb2_grpc).add_HealthServicer_to_server(self._state, server)

    async def begin(self, *services: str) -> None:
        """Serve under these names too; the empty one, for the whole server, is always known."""
        for name in services:
            await self._state.set(name, _SERVING)

    async def end(self) -> None:
        """Tell everyone who watches that nothing is taken any more."""
        await self._state.enter_graceful_shutdown()
