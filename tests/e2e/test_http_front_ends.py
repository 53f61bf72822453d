"""Chat front ends, with OpenAI's own client: words come while the model still writes them."""

from typing import Any

from openai import OpenAI

from tests.support.keyed_chat import HOLD, KeyedChat
from tests.support.web_server import WebServer

REPLIES = {
    "hello": ["Good day."],
    "slow": [
        "Slowly does it. " + HOLD + "\n```python\nprint(6 * 7)\n```",
        "It is 42, as `6 * 7` is.",
    ],
}
ANSWER = """\
Slowly does it.

```python
print(6 * 7)
```

```text
42
```

It is 42, as `6 * 7` is."""


def test_words_arrive_while_they_are_written(server: WebServer, chat: KeyedChat) -> None:
    with OpenAI(base_url=f"{server.url}v1", api_key="none is needed") as client:
        stream = client.chat.completions.create(
            model="assay", messages=[{"role": "user", "content": "slow"}], stream=True
        )
        pieces: list[str] = []
        for chunk in stream:
            pieces.append(chunk.choices[0].delta.content or "")
            if "".join(pieces) == "Slowly does it.":
                chat.go_on.set()
            last = chunk

    assert chat.go_on.is_set(), pieces
    assert "".join(pieces) == ANSWER
    assert last.choices[0].finish_reason == "stop"


def test_the_system_message_reaches_the_model_in_each_turn(
    server: WebServer, chat: KeyedChat
) -> None:
    told: list[Any] = [
        {"role": "system", "content": "Speak like a pirate."},
        {"role": "user", "content": "hello"},
    ]
    with OpenAI(base_url=f"{server.url}v1", api_key="none is needed") as client:
        answer = client.chat.completions.create(model="assay", messages=told)
        told += [
            {"role": "assistant", "content": answer.choices[0].message.content},
            {"role": "user", "content": "hello again"},
        ]
        client.chat.completions.create(model="assay", messages=told)
    for messages in chat.heard[-2:]:
        assert messages[0]["role"] == "system"
        assert "Speak like a pirate." in messages[0]["content"]
