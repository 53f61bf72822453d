"""Rate limits: requests of each client within a sliding minute."""

import time

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter


class RateLimiter:
    """Counts requests in memory, by client."""

    def __init__(self) -> None:
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    def hit(self, per_minute: int, *client: str) -> float | None:
        """Count a request; return the wait in seconds if it exceeds the limit, None otherwise."""
        item = RateLimitItemPerMinute(per_minute)
        if self._limiter.hit(item, *client):
            return None
        return max(0.0, self._limiter.get_window_stats(item, *client).reset_time - time.time())
