import pytest

from assay.contracts.errors import PackageError
from assay.sandbox.packages.requirements import parse_requirement, parse_requirements


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("requests", "requests"),
        (" Requests == 2.32.* ", "requests==2.32.*"),
        ("Foo.Bar_baz>=1,<2", "foo-bar-baz<2,>=1"),
        ("uvicorn[Standard, http]>=0.30", "uvicorn[http,standard]>=0.30"),
        ("x~=1.4.2", "x~=1.4.2"),
        ("x!=1!2.0+local.1", "x!=1!2.0+local.1"),
    ],
)
def test_a_requirement_has_one_way_to_be_written(text: str, written: str) -> None:
    assert str(parse_requirement(text)) == written


@pytest.mark.parametrize(
    "text",
    [
        "./package",
        "/etc/passwd",
        "git+https://example.org/x",
        "https://example.org/x.whl",
        "x @ https://example.org/x.whl",
        "x @ file:///tmp/x.whl",
        "-r requirements.txt",
        "x --index-url https://example.org",
        "x\n--index-url https://example.org",
        "x; os_name == 'posix'",
        "x==1 # comment",
        "x[a",
        "",
        "x" * 300,
    ],
)
def test_whatever_could_name_a_place_or_an_option_is_refused(text: str) -> None:
    with pytest.raises(PackageError):
        parse_requirement(text)


def test_order_and_repetition_make_no_difference() -> None:
    assert parse_requirements(["b", "a>=1", "B"]) == parse_requirements(["a >= 1", "b"])


@pytest.mark.parametrize(
    ("text", "exact"),
    [("a==1.0", True), ("a==1.*", False), ("a", False), ("a==1,!=2", False), ("a>=1", False)],
)
def test_only_one_version_means_the_same_for_ever(text: str, *, exact: bool) -> None:
    assert parse_requirement(text).exact is exact


def test_there_is_an_end_to_how_many() -> None:
    with pytest.raises(PackageError, match="1001 packages"):
        parse_requirements([f"p{number}" for number in range(1001)])
