"""The three wire formats as subjects of the model suite, each with a server of its own."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import get_args

from pydantic import SecretStr

from assay.contracts.messages import ModelInfo, Price
from assay.contracts.ports import Model
from assay.models.catalogue import provider
from assay.models.connection import Connection
from assay.models.providers.anthropic import open_anthropic
from assay.models.providers.gemini import open_gemini
from assay.models.providers.openai_compatible import open_openai_compatible
from tests.conformance.model import Behaviour, NoResponse, Opened
from tests.support.model_servers.anthropic_messages import AnthropicMessages
from tests.support.model_servers.gemini_content import GeminiContent
from tests.support.model_servers.http import Dialect, open_server
from tests.support.model_servers.openai_chat import OpenAIChat

SECRET = "sk-played-0123456789abcdef"  # noqa: S105 - opens nothing
MODEL = "played-model"

_INFO = ModelInfo(
    context_tokens=1000,
    max_output_tokens=1000,
    tool_calls=True,
    price=Price(input_usd=1.0, output_usd=2.0),
    supports_prefill=True,
    supports_json_schema=True,
    supports_seed=True,
    sees_pictures=True,
)
_NOT_LED = replace(_INFO, supports_prefill=False)
_NOT_DRAWN = replace(_INFO, supports_seed=False)
_SHORT_S = 0.3

OpenModel = Callable[[Connection], AbstractAsyncContextManager[Model]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedSubject:
    """A wire format whose peer can play everything."""

    name: str
    dialect: Dialect
    open_model: OpenModel
    key_variable: str
    path: str = ""
    info: ModelInfo = _INFO
    secret: str = SECRET
    plays: frozenset[type[Behaviour]] = frozenset(get_args(Behaviour))
    observes: bool = True

    @asynccontextmanager
    async def open(self, behaviour: Behaviour) -> AsyncGenerator[Opened]:
        silent = isinstance(behaviour, NoResponse)
        async with open_server(self.dialect, behaviour) as server:
            connection = Connection(
                base_url=server.url + self.path,
                api_key=SecretStr(self.secret),
                key_variable=self.key_variable,
                silence_s=_SHORT_S if silent else 180.0,
            )
            async with self.open_model(connection) as model:
                yield Opened(model=model, peer=server)


def open_chat(connection: Connection) -> AbstractAsyncContextManager[Model]:
    return open_openai_compatible(provider("openrouter"), MODEL, info=_INFO, connection=connection)


def open_messages(connection: Connection) -> AbstractAsyncContextManager[Model]:
    return open_anthropic(provider("anthropic"), MODEL, info=_NOT_DRAWN, connection=connection)


def open_content(connection: Connection) -> AbstractAsyncContextManager[Model]:
    return open_gemini(provider("gemini"), MODEL, info=_NOT_LED, connection=connection)


OPENAI = PlayedSubject(
    name="openai",
    dialect=OpenAIChat(),
    open_model=open_chat,
    key_variable="OPENROUTER_API_KEY",
    path="/v1",
)
ANTHROPIC = PlayedSubject(
    name="anthropic",
    dialect=AnthropicMessages(),
    open_model=open_messages,
    key_variable="ANTHROPIC_API_KEY",
    info=_NOT_DRAWN,
)
GEMINI = PlayedSubject(
    name="gemini",
    dialect=GeminiContent(),
    open_model=open_content,
    key_variable="GEMINI_API_KEY",
    info=_NOT_LED,
)
SUBJECTS = (OPENAI, ANTHROPIC, GEMINI)
