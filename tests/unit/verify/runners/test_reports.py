"""What runners printed when they were really run, and what others could print to deceive."""

import json
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.contracts.verdict import TamperKind, TestResult, TestStatus
from assay.verify.runners import go, javascript
from assay.verify.runners.cargo import named_tests as named_rust_tests
from assay.verify.runners.cargo import read_build, read_doc_tests, read_suite
from assay.verify.runners.ctest import FRAMEWORKS, framework_of, named_tests, read_targets

SAMPLES = Path(__file__).parent / "samples"
PASSED, FAILED, ERROR, SKIPPED = (
    TestStatus.PASSED,
    TestStatus.FAILED,
    TestStatus.ERROR,
    TestStatus.SKIPPED,
)


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


def statuses(tests: tuple[TestResult, ...]) -> dict[str, TestStatus]:
    return {test.id: test.status for test in tests}


def test_node_is_read_with_groups_skips_and_files_that_broke() -> None:
    tests, problem = javascript.read_node_report(sample("node.jsonl"))

    assert not problem
    assert statuses(tests) == {
        "a.test.mjs > adds": PASSED,
        "a.test.mjs > group > nested": PASSED,
        "a.test.mjs > group > bad": FAILED,
        "a.test.mjs > group > skipped": SKIPPED,
        "a.test.mjs > group > todo": SKIPPED,
        "a.test.mjs > group > todo fails": SKIPPED,
        "b.test.cjs": ERROR,
        "c.test.js": PASSED,
    }
    assert tests[2].message == "2 == 3"
    assert "a.test.mjs:7:28" in tests[2].detail


def test_a_report_of_node_that_breaks_off_is_none() -> None:
    lines = sample("node.jsonl").splitlines()

    assert javascript.read_node_report("\n".join(lines[:-1]))[1] == "Node did not report to the end"


def test_jest_is_read_past_what_tests_print() -> None:
    tests, problem, findings = javascript.read_jest_report(sample("jest.json"))

    assert not problem
    assert not findings
    assert statuses(tests) == {
        "t/sum.test.js > sum > adds": PASSED,
        "t/sum.test.js > sum > fails": FAILED,
        "t/sum.test.js > sum > later": SKIPPED,
        "t/sum.test.js > sum > someday": SKIPPED,
        "t/bad.test.js": ERROR,
    }
    assert "Expected: 4 Received: 3" in tests[1].message


def test_a_second_report_of_jest_is_a_forgery() -> None:
    real = sample("jest.json").splitlines()[-1]

    _, _, findings = javascript.read_jest_report(f"{real}\n{real}\n")

    assert [finding.kind for finding in findings] == [TamperKind.FORGED_REPORT]


def test_a_report_of_jest_that_does_not_fit_its_totals_is_a_forgery() -> None:
    report = json.loads(sample("jest.json").splitlines()[-1])
    report["testResults"] = report["testResults"][:1]
    report["testResults"][0]["assertionResults"].pop()

    _, _, findings = javascript.read_jest_report(json.dumps(report, separators=(",", ":")))

    assert [finding.severity for finding in findings] == ["forgery"]


def test_the_programs_of_a_cargo_build_are_found_separate_ones_first() -> None:
    build = read_build(sample("cargo_build.jsonl"))

    assert [str(program.source) for program in build.programs] == ["tests/adding.rs", "src/lib.rs"]
    assert build.programs[0].folder == PurePosixPath()
    assert build.has_documentation
    assert not build.errors


def test_the_errors_of_a_cargo_build_are_kept_as_rustc_shows_them() -> None:
    build = read_build(sample("cargo_errors.jsonl"))

    assert build.errors[0].startswith("error[E0061]: this function takes 1 argument")
    assert not any(program.separate for program in build.programs)


def test_a_rust_suite_is_read() -> None:
    tests, problem = read_suite(sample("libtest.jsonl"), PurePosixPath("tests/adding.rs"))

    assert not problem
    assert statuses(tests) == {
        "tests/adding.rs::adds": PASSED,
        "tests/adding.rs::deep::bad": FAILED,
        "tests/adding.rs::deep::panics": PASSED,
        "tests/adding.rs::deep::result": FAILED,
        "tests/adding.rs::later": SKIPPED,
    }
    bad = next(test for test in tests if test.id.endswith("bad"))
    assert bad.message == (
        "assertion `left == right` failed: sum left: 3 right: 4 (tests/adding.rs:7:50)"
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda lines: lines[:-1], "ended before they reported"),
        (lambda lines: [*lines[:-2], lines[-1]], "does not fit its own totals"),
        (lambda lines: [lines[0], *lines[2:]], ""),
        (
            lambda lines: ['{"type":"test","event":"ok","name":"extra"}', *lines],
            "does not fit its own totals",
        ),
    ],
)
def test_a_rust_suite_must_add_up(change: object, why: str) -> None:
    assert callable(change)
    lines = sample("libtest.jsonl").splitlines()

    _, problem = read_suite("\n".join(change(lines)), PurePosixPath("tests/adding.rs"))

    assert why in problem
    assert bool(why) == bool(problem)


def test_documentation_tests_are_read() -> None:
    assert statuses(read_doc_tests(sample("doctests.txt"))) == {"src/lib.rs - add (line 2)": PASSED}


def test_go_events_are_read_with_subtests_and_panics() -> None:
    tests, _ = go.read_events(sample("go.jsonl"))

    assert statuses(tests) == {
        "example.com/m::TestAdd": PASSED,
        "example.com/m::TestTable": FAILED,
        "example.com/m::TestTable/one": PASSED,
        "example.com/m::TestTable/two_words": FAILED,
        "example.com/m::TestLater": SKIPPED,
        "example.com/m/sub::TestPanics": FAILED,
    }
    table = next(test for test in tests if test.id.endswith("two_words"))
    assert table.message == 'add_test.go:10: got "two words"'


def test_a_go_test_that_does_not_end_is_an_error() -> None:
    tests, _ = go.read_events('{"Action":"run","Package":"m","Test":"TestA"}\n')

    assert statuses(tests) == {"m::TestA": ERROR}


def test_a_printed_pass_does_not_hide_a_go_failure() -> None:
    fail = '{"Action":"fail","Package":"m","Test":"TestA"}\n'
    forged = '{"Action":"pass","Package":"m","Test":"TestA"}\n'

    assert statuses(go.read_events(forged + fail)[0]) == {"m::TestA": FAILED}
    assert statuses(go.read_events(fail + forged)[0]) == {"m::TestA": FAILED}


def test_a_go_package_that_fails_by_itself_is_an_error() -> None:
    passed = '{"Action":"pass","Package":"m","Test":"TestA"}\n'
    tests, _ = go.read_events(passed + '{"Action":"fail","Package":"m"}\n')

    assert statuses(tests) == {"m::TestA": PASSED, "m": ERROR}


@pytest.mark.parametrize(
    ("framework", "name", "found"),
    [
        (
            "Catch2",
            "catch.xml",
            {"adds": PASSED, "fails": FAILED, "throws": FAILED, "empty": PASSED},
        ),
        ("doctest", "doctest.xml", {"adds": PASSED, "fails": FAILED, "skips": SKIPPED}),
    ],
)
def test_test_cases_of_cpp_are_read(
    framework: str, name: str, found: dict[str, TestStatus]
) -> None:
    known = next(one for one in FRAMEWORKS if one.name == framework)

    tests, problem = known.read((SAMPLES / name).read_bytes())

    assert not problem
    assert statuses(tests) == found
    failed = next(test for test in tests if test.id == "fails")
    assert failed.message.startswith(
        "CHECK(add(1, 2) == 4) is 3 == 4" if framework == "Catch2" else "CHECK(1+2 == 4) is 3 == 4"
    )


def test_a_cpp_report_that_breaks_off_is_none() -> None:
    known = next(one for one in FRAMEWORKS if one.name == "Catch2")
    whole = (SAMPLES / "catch.xml").read_bytes()

    tests, problem = known.read(whole[: len(whole) // 2])

    assert not tests
    assert problem


def test_programs_and_their_sources_are_read_from_cmake() -> None:
    (target,) = read_targets(sample("cmake_targets.json"), PurePosixPath("demo"))

    assert (target.name, target.artifact) == ("unit", "unit")
    assert PurePosixPath("demo/add_test.cpp") in target.sources


def test_only_tests_that_are_certain_are_expected_of_cpp() -> None:
    text = (
        '#include "test/catch.hpp"\nTEST_CASE("a", "[x]") {}\n// TEST_CASE("b") {}\n'
        '#ifdef MORE\nTEST_CASE("c") {}\n#endif\n/*\nTEST_CASE("d") {}\n*/\nTEST_CASE("e") {}\n'
    )
    framework = framework_of(text)

    assert framework
    assert named_tests(text, framework) == ("a", "e")


def test_only_tests_that_are_certain_are_expected_of_rust() -> None:
    text = (
        "#[test]\nfn a() {}\n#[test]\n#[ignore]\nfn b() {}\n#[cfg(windows)]\n#[test]\nfn c() {}\n"
        "mod m {\n    #[test]\n    fn d() {}\n}\n/*\n#[test]\nfn e() {}\n*/\n"
        '#[test]\n#[cfg(x)]\nfn f() {}\nconst T: &str = r#"\n#[test]\nfn g() {}\n"#;\n'
    )

    assert named_rust_tests(text) == ("a", "b")


@given(st.text(max_size=300))
def test_no_text_breaks_a_reader(text: str) -> None:
    javascript.read_node_report(text)
    javascript.read_jest_report(text)
    go.read_events(text)
    read_build(text)
    read_suite(text, PurePosixPath("a.rs"))
    read_doc_tests(text)
    read_targets(text, PurePosixPath())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["titles", "file", "type", "event", "name", "Action", "Package", "Test", "reason",
             "target", "testResults", "assertionResults", "numTotalTests", "Output", "test_count",
             "message", "profile", "executable", "sources", "artifacts", "status"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip


@given(st.lists(JSON, max_size=4))
def test_no_json_breaks_a_reader(values: list[object]) -> None:
    text = "\n".join(json.dumps(value) for value in values)
    javascript.read_node_report(text)
    javascript.read_jest_report(
        '{"num": 1}\n{"numTotalTests": 1, "testResults": ' + text[:200] + "}"
    )
    javascript.read_jest_report(
        "\n".join(f'{{"num":1,"numTotalTests":1,"testResults":{json.dumps(v)}}}' for v in values)
    )
    go.read_events(text)
    read_build(text)
    read_suite(text, PurePosixPath("a.rs"))
    read_targets(text, PurePosixPath())
