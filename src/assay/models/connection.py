"""How to reach a provider: address, key and patience, and the client that all SDKs share."""

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
    """How long to wait for a provider. A long answer is not a slow one: only silence counts."""

    connect_s: float = 10.0
    silence_s: float = 180.0
    """Between any two bytes. Long, because some models think, or read, before the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where to ask, and with which key."""

    base_url: str
    api_key: SecretStr = field(default_factory=lambda: SecretStr(""))
    """Empty for servers that want none."""
    key_variable: str = ""
    """Where the person keeps the key, for advice."""
    timeouts: Timeouts = field(default_factory=Timeouts)

    def asked(self, name: str) -> Asked:
        return Asked(name=name, secret=self.api_key, key_variable=self.key_variable)


def build_http_client(connection: Connection) -> "httpx2.AsyncClient":
    """Build the client that an SDK sends through; whoever builds it closes it."""
    import httpx2

    timeouts = connection.timeouts
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(timeouts.silence_s, connect=timeouts.connect_s),
        # Nobody who was given a key may send it on to somebody else.
        follow_redirects=False,
        # A proxy cannot reach what listens on this machine only, and people forget NO_PROXY.
        trust_env=urlsplit(connection.base_url).hostname not in _LOOPBACK,
    )
