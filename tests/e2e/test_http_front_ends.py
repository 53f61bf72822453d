"""Chat front ends, with OpenAI's own client: words come while the model still writes them."""

from openai import OpenAI

from tests.support.keyed_chat import HOLD, KeyedChat
from tests.support.web_server import WebServer

REPLIES = {
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
