from assay.memory.stored_memory import ResilientMemory
from tests.conformance.memory.failures import DURATIONS, SNIPPET, query_for


async def test_the_absent_memory_recalls_nothing_whatever_it_is_told() -> None:
    memory = ResilientMemory(None)

    await memory.learn(DURATIONS)
    await memory.judge(("a",), helped=True)
    await memory.keep(SNIPPET)
    await memory.tested("a", passed=True)

    assert await memory.recall(query_for(DURATIONS, "failure")) == ()
    assert await memory.offer(query_for(DURATIONS, "plan")) == ()
