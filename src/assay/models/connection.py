"""Connection to a provider: address, key, timeouts, and the HTTP client of all SDKs."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import SecretStr

from assay.models.error_mapping import Asked

if TYPE_CHECKING:
    import httpx2

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Timeouts for a provider. A long answer is not slow: only silence counts."""

    connect_s: float = 10.0
    silence_s: float = 180.0
    """Between any two bytes. Long, because some models think, or read, before the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The address and the key of a provider."""

    base_url: str
    api_key: SecretStr = field(default_factory=lambda: SecretStr(""))
    """Empty for servers that need no key."""
    key_variable: str = ""
    """The environment variable of the key, for hints."""
    timeouts: Timeouts = field(default_factory=Timeouts)

    def asked(self, name: str) -> Asked:
        return Asked(name=name, secret=self.api_key, key_variable=self.key_variable)


def build_http_client(connection: Connection) -> "httpx2.AsyncClient":
    """Build the HTTP client of an SDK; the caller closes it."""
    import httpx2

    timeouts = connection.timeouts
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(timeouts.silence_s, connect=timeouts.connect_s),
        # A redirect must not pass the key on to another host.
        follow_redirects=False,
        # Local servers are not reachable through a proxy, and users forget NO_PROXY.
        trust_env=urlsplit(connection.base_url).hostname not in _LOOPBACK,
    )
