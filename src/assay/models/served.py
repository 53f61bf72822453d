"""Models of servers: lists and properties from vLLM, llama.cpp, Ollama and LM Studio.

Models of OpenAI-compatible servers are discovered with a short timeout. What a server says is used
only if it has the right type, because another program may use the port.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import anyio
from pydantic import BaseModel, ConfigDict, ValidationError

from assay.models.connection import Connection, build_http_client

SURVEY_HEADER: Final = "X-Assay-Survey"
"""Tells another Assay service not to query further servers."""
_OURSELVES: Final = "assay"
_UNITS: Final = {"M": 10**6, "B": 10**9, "T": 10**12}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model of a server, with the properties that the server gives; None if it gives none."""

    name: str
    base_name: str = ""
    """The model behind an alias."""
    context_tokens: int | None = None
    """The server's context size, which may be below the model's."""
    max_output_tokens: int | None = None
    parameters: int | None = None
    tool_calls: bool | None = None
    sees_pictures: bool | None = None


class _Listed(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    id: str

    def as_served(self) -> ServedModel:
        fields = self.model_extra or {}
        meta, top = _table(fields.get("meta")), _table(fields.get("top_provider"))
        base = fields.get("root")
        return ServedModel(
            name=self.id,
            base_name=base if isinstance(base, str) else "",
            # Names of vLLM, llama.cpp, and OpenRouter and others. A server may use one differently.
            context_tokens=_first_count(
                fields.get("max_model_len"), meta.get("n_ctx"), fields.get("context_length")
            ),
            max_output_tokens=_first_count(top.get("max_completion_tokens")),
            parameters=_first_count(meta.get("n_params")),
        )


class _Listing(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    data: list[_Listed] | None


async def list_models(
    connection: Connection, *, timeout_s: float
) -> tuple[ServedModel, ...] | None:
    """Return the text models; None if no such server answers.

    Another program may use the port: only an answer in the right format counts. An answer of an
    Assay service does not count, because it would query a model itself.
    """
    answer = await _get(connection, connection.base_url.rstrip("/") + "/models", timeout_s)
    try:
        listed = None if answer is None else _Listing.model_validate_json(answer).data or []
    except ValidationError:
        return None
    if listed is None or any(
        (one.model_extra or {}).get("owned_by") == _OURSELVES for one in listed
    ):
        return None
    return tuple(model.as_served() for model in listed if "embed" not in model.id.lower())


async def add_details(
    server: str, connection: Connection, model: ServedModel, *, timeout_s: float
) -> ServedModel:
    """Add what a server of this kind gives outside of its list; unchanged if it gives nothing."""
    root = connection.base_url.rstrip("/").removesuffix("/v1")
    match server:
        case "ollama":
            shown = _parse(
                await _get(connection, f"{root}/api/show", timeout_s, {"model": model.name})
            )
            running = _parse(await _get(connection, f"{root}/api/ps", timeout_s))
            return _of_ollama(model, shown, running)
        case "llamacpp":
            return _of_llamacpp(model, _parse(await _get(connection, f"{root}/props", timeout_s)))
        case "lmstudio":
            address = f"{root}/api/v0/models/{model.name}"
            return _of_lmstudio(model, _parse(await _get(connection, address, timeout_s)))
        case _:
            return model


def _of_ollama(
    model: ServedModel, shown: Mapping[str, Any], running: Mapping[str, Any]
) -> ServedModel:
    details, sizes = _table(shown.get("details")), _table(shown.get("model_info"))
    able = shown.get("capabilities")
    lengths = [value for name, value in sizes.items() if name.endswith(".context_length")]
    loaded = [
        _table(one).get("context_length")
        for one in _rows(running.get("models"))
        if _table(one).get("name") == model.name
    ]
    return replace(
        model,
        # A loaded model has the context size with which Ollama started it, often a small one.
        context_tokens=_first_count(
            *loaded, _number_of(shown.get("parameters"), "num_ctx"), *lengths
        ),
        parameters=_first_count(
            sizes.get("general.parameter_count"), _parameters_in(details.get("parameter_size"))
        ),
        tool_calls="tools" in able if isinstance(able, list) else None,
        sees_pictures="vision" in able if isinstance(able, list) else None,
    )


def _of_llamacpp(model: ServedModel, properties: Mapping[str, Any]) -> ServedModel:
    defaults = _table(properties.get("default_generation_settings"))
    able = _table(properties.get("chat_template_caps")).get("supports_tools")
    sees = _table(properties.get("modalities")).get("vision")
    return replace(
        model,
        context_tokens=_first_count(defaults.get("n_ctx"), model.context_tokens),
        tool_calls=able if isinstance(able, bool) else None,
        sees_pictures=sees if isinstance(sees, bool) else None,
    )


def _of_lmstudio(model: ServedModel, shown: Mapping[str, Any]) -> ServedModel:
    able, kind = shown.get("capabilities"), shown.get("type")
    return replace(
        model,
        context_tokens=_first_count(
            shown.get("loaded_context_length"),
            shown.get("max_context_length"),
            model.context_tokens,
        ),
        tool_calls="tool_use" in able if isinstance(able, list) else None,
        sees_pictures=kind == "vlm" if isinstance(kind, str) else None,
    )


async def _get(
    connection: Connection, address: str, timeout_s: float, body: Mapping[str, str] | None = None
) -> bytes | None:
    """Return the answer of a server; None without a successful one. A body is posted."""
    import httpx2

    key = connection.api_key.get_secret_value()
    headers = {SURVEY_HEADER: "1"} | ({"Authorization": f"Bearer {key}"} if key else {})
    async with build_http_client(connection) as client:
        with anyio.move_on_after(timeout_s):
            try:
                if body is None:
                    answer = await client.get(address, headers=headers)
                else:
                    answer = await client.post(address, headers=headers, json=dict(body))
            except (httpx2.HTTPError, httpx2.InvalidURL):
                return None
            return answer.content if answer.is_success else None
    return None


def _parse(answer: bytes | None) -> Mapping[str, Any]:
    try:
        return _table(json.loads(answer or b""))
    except ValueError:
        return {}


def _table(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _rows(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _first_count(*values: object) -> int | None:
    found = (
        one for one in values if isinstance(one, int) and not isinstance(one, bool) and one > 0
    )
    return next(found, None)


def _number_of(parameters: object, name: str) -> int | None:
    """Return a number of Ollama's lines of parameters: `num_ctx   8192`."""
    for line in parameters.splitlines() if isinstance(parameters, str) else ():
        match line.split():
            case [found, value] if found == name and value.isdecimal():
                return int(value)
            case _:
                pass
    return None


def _parameters_in(size: object) -> int | None:
    """Return the number in a size such as `7.6B` or `494.03M`."""
    if not isinstance(size, str) or size[-1:].upper() not in _UNITS:
        return None
    try:
        return int(float(size[:-1]) * _UNITS[size[-1].upper()])
    except (ValueError, OverflowError):
        return None
