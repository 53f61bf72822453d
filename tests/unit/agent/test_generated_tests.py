from assay.agent.steps.plan import make_plan
from assay.contracts.goal import RunSpec, Status
from tests.doubles.scripted_model import ScriptedModel, says
from tests.support.sittings import a_sitting

NO_TESTS = [says("I would rather not.")] * 3


async def test_a_run_that_nothing_could_accept_ends_before_the_first_attempt() -> None:
    model = ScriptedModel(NO_TESTS)

    state = await make_plan(a_sitting(model, RunSpec(goal="Write a poem into poem.txt")))

    assert state.ending is not None
    assert (state.ending.status, state.ending.attempts) == (Status.NOT_ACCEPTED, 0)
    assert "name a check with --check" in state.ending.reason
    assert len(model.asked) == 3


async def test_tests_with_half_a_character_in_them_are_to_be_written_again() -> None:
    broken = says("```python\ndef test_it():\n    assert poem == '\ud83d'\n```")
    model = ScriptedModel([broken, *NO_TESTS[1:]])

    await make_plan(a_sitting(model, RunSpec(goal="Write a poem into poem.txt")))

    *_, said, complaint = model.asked[1].messages
    assert "surrogates not allowed" in complaint.text
    assert "assert poem == '?'" in said.text


async def test_a_program_is_run_by_its_name_whatever_is_in_it() -> None:
    model = ScriptedModel([*NO_TESTS, says("1. write it")])
    goal = RunSpec(goal="Write a program", allowed=("my program.py",))

    state = await make_plan(a_sitting(model, goal))

    assert state.plan.checks == ("python3 'my program.py'",)
