import pytest

from assay.sandbox.packages.requirements import parse_requirements
from assay.sandbox.packages.resolver import IndexUnreachableError, explain
from assay.sandbox.packages.target import Target

TARGET = Target(python="3.11", platform="x86_64-unknown-linux-gnu", present=("numpy==2.4.1",))
NO_SOLUTION = "error: No solution found when resolving dependencies\n  cause: "


def explained(said: str, *asked: str) -> tuple[str, str]:
    error = explain(NO_SOLUTION + said, parse_requirements(asked), TARGET)
    return str(error), error.hint


def test_a_misspelt_name_is_told_with_what_was_meant() -> None:
    message, _ = explained(
        "Because reqeusts was not found in the package registry and you require reqeusts, we can "
        "conclude that your requirements are unsatisfiable.",
        "reqeusts",
    )

    assert message == "there is no package named 'reqeusts'; did you mean 'requests'?"


def test_a_module_is_told_its_package() -> None:
    message, _ = explained("Because cv2 was not found in the package registry", "cv2")

    assert "did you mean 'opencv-python-headless'" in message


def test_a_name_like_no_other_is_told_without_a_guess() -> None:
    message, _ = explained("Because qwzx was not found in the package registry", "qwzx")

    assert message == "there is no package named 'qwzx'"


def test_a_missing_dependency_is_not_taken_for_what_was_asked() -> None:
    message, _ = explained("Because other was not found in the package registry", "mine")

    assert message == "a package that was asked for needs 'other', which does not exist"


def test_what_has_no_wheel_is_told_for_which_python() -> None:
    message, hint = explained(
        "Because all versions of sklearn have no usable wheels and you require sklearn, we can "
        "conclude that your requirements are unsatisfiable.\n\nhint: Wheels are required",
        "sklearn",
    )

    assert message.startswith("there is no wheel of sklearn for Python 3.11 on x86_64")
    assert hint == "did you mean 'scikit-learn'?"


def test_a_version_that_does_not_exist_is_named() -> None:
    message, _ = explained(
        "Because there is no version of requests==99.0 and you require requests==99.0, we can "
        "conclude that your requirements are unsatisfiable.",
        "requests==99.0",
    )
    ranged, hint = explained(
        "Because only torchx<=0.7.0 is available and you require torchx>=900, we can conclude",
        "torchx>=900",
    )

    assert "no version of requests==99.0" in message
    assert "no version that fits torchx>=900" in ranged
    assert hint == "there is torchx<=0.7.0"


def test_what_is_loaded_already_is_named_as_the_reason() -> None:
    message, hint = explained(
        "Because you require numpy<2 and numpy==2.4.1, we can conclude that your requirements are "
        "unsatisfiable.",
        "numpy<2",
    )

    assert message.startswith("the sandbox has numpy 2.4.1 loaded")
    assert "conclude" not in message
    assert hint == "ask for versions that work with numpy==2.4.1"


def test_a_conflict_is_told_shortly() -> None:
    message, _ = explained("Because " + "a depends on b and " * 200, "a", "b")

    assert len(message) < 500


@pytest.mark.parametrize(
    "cause", ["dns error", "Failed to fetch: https://u:secret@i.example/", "Connection refused"]
)
def test_an_index_that_does_not_answer_is_not_the_fault_of_the_request(cause: str) -> None:
    with pytest.raises(IndexUnreachableError) as caught:
        explain(f"error: Request failed\n  cause: {cause}", (), TARGET)

    assert "secret" not in str(caught.value)
