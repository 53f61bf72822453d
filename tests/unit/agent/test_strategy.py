from dataclasses import replace

from assay.agent.strategy import complements, first_step, next_step
from assay.contracts.goal import RunLimits
from tests.support.attempts import an_attempt

EFFORT = RunLimits()


def test_a_small_model_begins_with_its_likeliest_reply() -> None:
    assert first_step(small=True).temperature == 0.0


def test_a_strong_model_begins_with_its_own_temperature() -> None:
    assert first_step(small=False).temperature is None


def test_a_small_model_is_sampled_before_it_is_asked_to_repair() -> None:
    attempts = (an_attempt(1, passed="a", failed="b"),)

    step = next_step(attempts, 1, EFFORT, small=True)

    assert step.action == "sample"
    assert step.temperature


def test_a_small_model_repairs_its_best_sample_from_time_to_time() -> None:
    attempts = tuple(an_attempt(n, passed="a" if n == 2 else "", failed="b") for n in (1, 2, 3, 4))

    step = next_step(attempts, 2, EFFORT, small=True)

    assert (step.action, step.base) == ("repair", 2)
    assert step.temperature


def test_a_small_model_is_told_which_tests_are_hard() -> None:
    attempts = tuple(an_attempt(n, passed="a", failed="b") for n in (1, 2, 3))

    step = next_step(attempts, 1, EFFORT, small=True)

    assert (step.action, step.base) == ("hinted", 1)


def test_attempts_that_complement_each_other_are_put_together_once() -> None:
    attempts = (an_attempt(1, passed="ab", failed="c"), an_attempt(2, passed="c", failed="ab"))
    mixed = replace(an_attempt(3, passed="ab", failed="c", action="combine"), base=1, other=2)

    step = next_step(attempts, 1, EFFORT, small=True, partners=complements(attempts, 1))

    assert (step.action, step.base, step.other) == ("combine", 1, 2)
    assert complements((*attempts, mixed), 1) == ()


def test_the_attempt_that_adds_most_comes_first() -> None:
    attempts = (
        an_attempt(1, passed="abc", failed="de"),
        an_attempt(2, passed="d", failed="abce"),
        an_attempt(3, passed="de", failed="abc"),
        an_attempt(4, passed="ab", failed="cde"),
    )

    assert complements(attempts, 1) == (3, 2)


def test_a_small_model_is_not_asked_to_repair_what_never_ran() -> None:
    attempts = tuple(replace(an_attempt(n), complaint="no file in it") for n in (1, 2, 3))

    assert next_step(attempts, 0, EFFORT, small=True).action == "sample"


def test_a_strong_model_repairs_first() -> None:
    attempts = (an_attempt(1, passed="a", failed="b"),)

    step = next_step(attempts, 1, EFFORT, small=False)

    assert (step.action, step.base) == ("repair", 1)


def test_a_repair_that_lost_tests_goes_on_from_the_best() -> None:
    attempts = (
        an_attempt(1, passed="ab", failed="c"),
        an_attempt(2, failed="abc", action="repair"),
    )

    assert next_step(attempts, 1, EFFORT, small=False).base == 1


def test_after_two_repairs_a_fresh_context_begins() -> None:
    attempts = (
        an_attempt(1, passed="a", failed="bcd"),
        an_attempt(2, passed="ab", failed="cd", action="repair"),
        an_attempt(3, passed="abc", failed="d", action="repair"),
    )

    step = next_step(attempts, 3, EFFORT, small=False)

    assert (step.action, step.base) == ("fresh", 3)


def test_the_same_failures_twice_change_the_strategy() -> None:
    attempts = (
        an_attempt(1, failed="a", signatures=("NameError",)),
        an_attempt(2, failed="a", signatures=("NameError",), action="repair"),
    )

    step = next_step(attempts, 1, EFFORT, small=False)

    assert step.action == "fresh"
    assert step.temperature


def test_other_failures_do_not_change_the_strategy() -> None:
    attempts = (
        an_attempt(1, failed="a", signatures=("NameError",)),
        an_attempt(2, failed="a", signatures=("TypeError",), action="repair"),
    )

    assert next_step(attempts, 1, EFFORT, small=False).action == "repair"


def test_the_same_files_again_change_the_strategy() -> None:
    again = replace(an_attempt(2, failed="a", action="repair"), repeats=1)
    attempts = (an_attempt(1, failed="a"), again)

    assert next_step(attempts, 1, EFFORT, small=False).action == "fresh"
