"""Exercises of our own, laid out as suites on the disk, for tests."""

import json
from collections.abc import Mapping
from pathlib import Path

ADD_DOCS = "Add two numbers.\n"
SECRET = "the_reference_speaks"  # noqa: S105 - a word to look for
"""Stands in every reference, and must stand nowhere else."""


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def python_exercise(name: str, *, wrong_reference: bool = False) -> dict[str, str]:
    """Return the files of an exercise in the simple format."""
    sign = "-" if wrong_reference else "+"
    return {
        f"{name}/exercise.toml": 'language = "python"\nsolution = ["adding.py"]\n',
        f"{name}/docs.md": ADD_DOCS,
        f"{name}/workspace/adding.py": "def add(a, b):\n    pass\n",
        f"{name}/tests/adding_test.py": (
            "import unittest\nfrom adding import add\n\n\n"
            "class AddingTest(unittest.TestCase):\n"
            "    def test_small(self):\n        self.assertEqual(add(2, 3), 5)\n\n"
            "    def test_hidden_number(self):\n        self.assertEqual(add(2000, 1), 2001)\n"
        ),
        f"{name}/reference/adding.py": (
            f"def add(a, b):\n    {SECRET} = a {sign} b\n    return {SECRET}\n"
        ),
    }


def simple_suite(folder: Path, count: int, *, wrong: tuple[int, ...] = ()) -> Path:
    """Write a suite of Python exercises; the references of those in `wrong` are wrong."""
    for number in range(count):
        files = python_exercise(f"adding-{number}", wrong_reference=number in wrong)
        write_files(folder, files)
    return folder


def _config(**files: list[str]) -> str:
    return json.dumps({"authors": [], "files": files})


POLYGLOT: Mapping[str, Mapping[str, str]] = {
    "python/adding": {
        ".meta/config.json": _config(
            solution=["adding.py"], test=["adding_test.py"], example=[".meta/example.py"]
        ),
        ".meta/example.py": f"def add(a, b):\n    {SECRET} = a + b\n    return {SECRET}\n",
        ".approaches/one/content.md": SECRET,
        ".articles/one/content.md": SECRET,
        ".docs/introduction.md": "# Introduction\n",
        ".docs/instructions.md": ADD_DOCS,
        ".docs/instructions.append.md": "Whole numbers.\n",
        ".docs/hints.md": "Never shown.\n",
        "adding.py": "def add(a, b):\n    pass\n",
        "adding_test.py": (
            "import unittest\nfrom adding import add\n\n\n"
            "class AddingTest(unittest.TestCase):\n"
            "    def test_small(self):\n        self.assertEqual(add(2, 3), 5)\n"
        ),
    },
    "javascript/adding": {
        ".meta/config.json": _config(
            solution=["adding.js"], test=["adding.spec.js"], example=[".meta/proof.ci.js"]
        ),
        ".meta/proof.ci.js": f"export const add = (a, b) => {{ const {SECRET} = a + b; "
        f"return {SECRET}; }};\n",
        ".docs/instructions.md": ADD_DOCS,
        "adding.js": "export const add = () => {\n  throw new Error('to do');\n};\n",
        "adding.spec.js": (
            "import { add } from './adding';\n\ndescribe('adding', () => {\n"
            "  test('small', () => {\n    expect(add(2, 3)).toEqual(5);\n  });\n"
            "  xtest('large', () => {\n    expect(add(2000, 1)).toEqual(2001);\n  });\n"
            "  xit('left out', () => {\n    expect(add(1, 1)).toEqual(2);\n  });\n});\n"
        ),
        "babel.config.js": (
            "module.exports = {\n  presets: ['@exercism/babel-preset-javascript'],\n"
            "  plugins: [],\n};\n"
        ),
        "package.json": '{"name": "adding", "private": true, "scripts": {"test": "jest ./*"}}\n',
    },
    "go/adding": {
        ".meta/config.json": _config(
            solution=["adding.go"],
            test=["adding_test.go"],
            example=[".meta/example.go"],
            editor=["cases_test.go"],
        ),
        ".meta/example.go": (
            f"package adding\n\nfunc Add(a, b int) int {{ {SECRET} := a + b; return {SECRET} }}\n"
        ),
        ".docs/instructions.md": ADD_DOCS,
        "adding.go": 'package adding\n\nfunc Add(a, b int) int {\n\tpanic("to do")\n}\n',
        "cases_test.go": "package adding\n\nvar cases = [][3]int{{2, 3, 5}, {2000, 1, 2001}}\n",
        "adding_test.go": (
            'package adding\n\nimport "testing"\n\nfunc TestAdd(t *testing.T) {\n'
            "\tfor _, c := range cases {\n\t\tif got := Add(c[0], c[1]); got != c[2] {\n"
            '\t\t\tt.Fatalf("got %d", got)\n\t\t}\n\t}\n}\n'
        ),
        "go.mod": "module adding\n\ngo 1.18\n",
    },
    "rust/adding": {
        ".meta/config.json": _config(
            solution=["src/lib.rs", "Cargo.toml"],
            test=["tests/adding.rs"],
            example=[".meta/example.rs"],
        ),
        ".meta/example.rs": (
            f"pub fn add(a: i32, b: i32) -> i32 {{ let {SECRET} = a + b; {SECRET} }}\n"
        ),
        ".docs/instructions.md": ADD_DOCS,
        "src/lib.rs": 'pub fn add(_a: i32, _b: i32) -> i32 {\n    todo!("add")\n}\n',
        "tests/adding.rs": (
            "use adding::*;\n\n#[test]\nfn small() {\n    assert_eq!(add(2, 3), 5);\n}\n\n"
            "#[test]\n#[ignore]\nfn large() {\n    assert_eq!(add(2000, 1), 2001);\n}\n"
        ),
        "Cargo.toml": '[package]\nname = "adding"\nversion = "0.0.0"\nedition = "2021"\n',
    },
    "cpp/adding": {
        ".meta/config.json": _config(
            solution=["adding.cpp", "adding.h"],
            test=["adding_test.cpp"],
            example=[".meta/example.cpp", ".meta/example.h"],
        ),
        ".meta/example.cpp": (
            '#include "adding.h"\n\nint add(int a, int b) {\n'
            f"    int {SECRET} = a + b;\n    return {SECRET};\n}}\n"
        ),
        ".meta/example.h": "#pragma once\nint add(int a, int b);\n",
        ".docs/instructions.md": ADD_DOCS,
        "adding.cpp": '#include "adding.h"\n',
        "adding.h": "#pragma once\n",
        "adding_test.cpp": (
            '#include "adding.h"\n#include "test/catch.hpp"\n\n'
            'TEST_CASE("small") { REQUIRE(add(2, 3) == 5); }\n'
            "#if defined(EXERCISM_RUN_ALL_TESTS)\n"
            'TEST_CASE("large") { REQUIRE(add(2000, 1) == 2001); }\n#endif\n'
        ),
        "test/tests-main.cpp": '#define CATCH_CONFIG_MAIN\n#include "catch.hpp"\n',
        "CMakeLists.txt": (
            "get_filename_component(exercise ${CMAKE_CURRENT_SOURCE_DIR} NAME)\n"
            "cmake_minimum_required(VERSION 3.5.1)\nproject(${exercise} CXX)\n"
            "add_executable(${exercise} ${exercise}_test.cpp ${exercise}.cpp "
            "test/tests-main.cpp)\n"
            "set_target_properties(${exercise} PROPERTIES CXX_STANDARD 17)\n"
            "if(${EXERCISM_RUN_ALL_TESTS})\n"
            "  target_compile_definitions(${exercise} PRIVATE EXERCISM_RUN_ALL_TESTS)\nendif()\n"
            "add_custom_target(test_${exercise} ALL DEPENDS ${exercise} COMMAND ${exercise})\n"
        ),
    },
    "java/adding": {
        ".meta/config.json": _config(
            solution=["src/main/java/Adding.java"],
            test=["src/test/java/AddingTest.java"],
            example=[".meta/src/reference/java/Adding.java"],
        ),
        ".meta/src/reference/java/Adding.java": (
            f"class Adding {{ int add(int a, int b) {{ int {SECRET} = a + b; "
            f"return {SECRET}; }} }}\n"
        ),
        ".docs/instructions.md": ADD_DOCS,
        "src/main/java/Adding.java": (
            "class Adding {\n    int add(int a, int b) {\n"
            '        throw new UnsupportedOperationException("to do");\n    }\n}\n'
        ),
        "src/test/java/AddingTest.java": (
            "import static org.assertj.core.api.Assertions.assertThat;\n"
            "import org.junit.jupiter.api.Disabled;\nimport org.junit.jupiter.api.Test;\n\n"
            "public class AddingTest {\n    @Test\n    public void small() {\n"
            "        assertThat(new Adding().add(2, 3)).isEqualTo(5);\n    }\n\n"
            '    @Disabled("Remove to run test")\n    @Test\n    public void large() {\n'
            "        assertThat(new Adding().add(2000, 1)).isEqualTo(2001);\n    }\n}\n"
        ),
        "build.gradle": (
            'dependencies {\n    testImplementation platform("org.junit:junit-bom:5.10.0")\n'
            '    testImplementation "org.junit.jupiter:junit-jupiter"\n'
            '    testImplementation "org.assertj:assertj-core:3.25.1"\n}\n'
        ),
        "gradlew": "#!/bin/sh\nexit 0\n",
    },
}


def polyglot_clone(folder: Path, *, catch: str = "") -> Path:
    """Write exercises of all six languages as the benchmark's repository has them."""
    for name, files in POLYGLOT.items():
        language, _, slug = name.partition("/")
        place = folder / language / "exercises" / "practice" / slug
        write_files(place, files)
        if language == "cpp":
            write_files(place, {"test/catch.hpp": catch})
    return folder
