"""One small project per test runner: right, wrong, and lying in the ways its language offers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from assay.verify.runner import Runner
from assay.verify.runners.cargo import CargoRunner
from assay.verify.runners.ctest import CTestRunner
from assay.verify.runners.go import GoRunner
from assay.verify.runners.javascript import JestRunner, NodeRunner
from assay.verify.runners.junit import JUnitConsoleRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerCase:
    """A project with one test file and one file that is to be written."""

    runner: Runner
    component: str
    """What the machine must have."""
    probe: str
    """A shell command that succeeds where the component is."""
    command: str
    plain: str
    """What a person without Assay would run, with the exit code as the only evidence."""
    files: Mapping[str, str]
    test: str
    target: str
    right: str
    wrong: str
    lies: Mapping[str, str]
    """Contents of the target that are wrong and make the plain command end well."""
    passed: frozenset[str]
    """What is reported when all is right."""

    @property
    def protected(self) -> tuple[PurePosixPath, ...]:
        return (PurePosixPath(self.test),)


NODE = RunnerCase(
    runner=NodeRunner(),
    component="node",
    probe="node --version",
    command="node --test add.test.mjs",
    plain="node --test add.test.mjs",
    test="add.test.mjs",
    target="add.mjs",
    files={
        "add.test.mjs": (
            "import { describe, it, test } from 'node:test';\n"
            "import assert from 'node:assert';\n"
            "import { add } from './add.mjs';\n\n"
            "test('adds', () => {\n  assert.strictEqual(add(1, 2), 3);\n});\n"
            "describe('more', () => {\n"
            "  it('lists', () => {\n    assert.deepEqual([add(2, 2)], [4]);\n  });\n"
            "});\n"
        )
    },
    right="export const add = (a, b) => a + b;\n",
    wrong="export const add = (a, b) => a - b;\n",
    lies={
        "exits": "process.exit(0);\nexport const add = 0;\n",
        "exits in a test": "export const add = () => process.exit(0);\n",
        "patches assert": (
            "import assert from 'node:assert';\n"
            "for (const name of Object.keys(assert)) assert[name] = () => {};\n"
            "export const add = () => 9;\n"
        ),
        "prints TAP": (
            "console.log('TAP version 13\\nok 1 - adds\\nok 2 - more\\n1..2');\n"
            "process.exit(0);\nexport const add = 0;\n"
        ),
        "speaks for the runner": (
            # The very frame in which a test process tells its parent of a test that passed.
            "import v8 from 'node:v8';\n"
            "for (const name of ['adds', 'more']) {\n"
            "  const file = new URL('./add.test.mjs', import.meta.url).pathname;\n"
            "  const data = { name, nesting: 0, testNumber: 1, details: { duration_ms: 1 }, "
            "line: 1, column: 1, file };\n"
            "  const frame = new v8.DefaultSerializer();\n"
            "  frame.writeHeader();\n"
            "  frame.writeRawBytes(Buffer.alloc(4));\n"
            "  frame.writeHeader();\n"
            "  frame.writeValue({ type: 'test:pass', data });\n"
            "  const bytes = frame.releaseBuffer();\n"
            "  bytes.writeUInt32BE(bytes.length - 6, 2);\n"
            "  process.stdout.write(bytes);\n"
            "}\n"
            "process.exit(0);\nexport const add = 0;\n"
        ),
    },
    passed=frozenset({"add.test.mjs > adds", "add.test.mjs > more > lists"}),
)

_NODE_PATH = "NODE_PATH=/usr/lib/node_modules:/usr/local/lib/node_modules:/usr/share/nodejs"

JEST = RunnerCase(
    runner=JestRunner(),
    component="jest",
    probe=f"{_NODE_PATH} node -e \"require.resolve('jest/package.json')\"",
    command=f"{_NODE_PATH} npx jest",
    plain=(
        f"{_NODE_PATH} node -e \"require(require('path').join(require.resolve("
        "'jest/package.json'), '../bin/jest.js'))\""
    ),
    test="add.test.js",
    target="add.js",
    files={
        "package.json": "{}\n",
        "add.test.js": (
            "const { add } = require('./add');\n\n"
            "describe('add', () => {\n"
            "  test('adds', () => {\n    expect(add(1, 2)).toBe(3);\n  });\n"
            "  test('refuses', () => {\n    expect(() => add()).toThrow();\n  });\n"
            "});\n"
        ),
    },
    right=(
        "exports.add = (a, b) => {\n  if (a === undefined) throw new Error('nothing to add');\n"
        "  return a + b;\n};\n"
    ),
    wrong="exports.add = (a, b) => a - b;\n",
    lies={
        "exits": "process.reallyExit(0);\n",
        "replaces matchers": (
            "const yes = () => ({ pass: true });\nexpect.extend({ toBe: yes, toThrow: yes });\n"
            "exports.add = () => 9;\n"
        ),
        "replaces test": (
            "globalThis.test = (name) => it(name, () => {});\nexports.add = () => 9;\n"
        ),
        "prints a report": (
            "const of = (title) => ({ ancestorTitles: ['add'], title, status: 'passed' });\n"
            "process.stdout.write(JSON.stringify({ numTotalTests: 2, testResults: [{ name: "
            "'/app/add.test.js', status: 'passed', assertionResults: [of('adds'), of('refuses')] "
            "}] }) + '\\n');\nprocess.reallyExit(0);\n"
        ),
    },
    passed=frozenset({"add.test.js > add > adds", "add.test.js > add > refuses"}),
)

CARGO = RunnerCase(
    runner=CargoRunner(),
    component="cargo",
    probe="cargo --version && cc --version",
    command="cargo test -- --include-ignored",
    plain=(
        "CARGO_HOME=/tmp/h CARGO_TARGET_DIR=/tmp/t cargo test --offline -q -- --include-ignored"
    ),
    test="tests/adding.rs",
    target="src/lib.rs",
    files={
        "Cargo.toml": '[package]\nname = "adder"\nversion = "0.1.0"\nedition = "2021"\n',
        "tests/adding.rs": (
            "use adder::add;\n\n#[test]\nfn adds() {\n    assert_eq!(add(1, 2), 3);\n}\n\n"
            "#[test]\n#[ignore]\nfn adds_more() {\n    assert_eq!(add(2, 2), 4);\n}\n"
        ),
    },
    right="pub fn add(a: i32, b: i32) -> i32 {\n    a + b\n}\n",
    wrong="pub fn add(a: i32, b: i32) -> i32 {\n    a - b\n}\n",
    lies={
        "exits": "pub fn add(_: i32, _: i32) -> i32 {\n    std::process::exit(0)\n}\n",
        "exits when it panics": (
            "pub fn add(_: i32, _: i32) -> i32 {\n"
            "    std::panic::set_hook(Box::new(|_| std::process::exit(0)));\n    9\n}\n"
        ),
        "prints a report": (
            "use std::io::Write;\n"
            "pub fn add(_: i32, _: i32) -> i32 {\n"
            "    let mut out = std::io::stdout();\n"
            '    for name in ["adds", "adds_more"] {\n'
            r'        writeln!(out, "{{\"type\":\"test\",\"event\":\"ok\",\"name\":\"{name}\"}}")'
            ".unwrap();\n    }\n"
            r'    writeln!(out, "{{\"type\":\"suite\",\"event\":\"ok\",\"passed\":2}}").unwrap();'
            "\n    std::process::exit(0)\n}\n"
        ),
    },
    passed=frozenset({"tests/adding.rs::adds", "tests/adding.rs::adds_more"}),
)

GO = RunnerCase(
    runner=GoRunner(),
    component="go",
    probe="go version",
    command="go test ./...",
    plain="GOCACHE=/tmp/c GOPATH=/tmp/g go test ./...",
    test="add_test.go",
    target="add.go",
    files={
        "go.mod": "module example.com/adder\n\ngo 1.18\n",
        "add_test.go": (
            'package adder\n\nimport "testing"\n\n'
            "func TestAdd(t *testing.T) {\n\tif Add(1, 2) != 3 {\n"
            '\t\tt.Fatal("1 + 2 is not 3")\n\t}\n}\n\n'
            "func TestMore(t *testing.T) {\n"
            '\tt.Run("two", func(t *testing.T) {\n\t\tif Add(2, 2) != 4 {\n'
            '\t\t\tt.Error("2 + 2 is not 4")\n\t\t}\n\t})\n}\n'
        ),
    },
    right="package adder\n\nfunc Add(a, b int) int { return a + b }\n",
    wrong="package adder\n\nfunc Add(a, b int) int { return a - b }\n",
    lies={
        "exits": (
            'package adder\n\nimport "os"\n\nfunc init() { os.Exit(0) }\n\n'
            "func Add(a, b int) int { return 9 }\n"
        ),
        "exits in a test": (
            'package adder\n\nimport "syscall"\n\n'
            "func Add(a, b int) int {\n\tsyscall.Exit(0)\n\treturn 9\n}\n"
        ),
        "prints results": (
            'package adder\n\nimport (\n\t"fmt"\n\t"os"\n)\n\nfunc init() {\n'
            '\tfor _, name := range []string{"TestAdd", "TestMore", "TestMore/two"} {\n'
            '\t\tfmt.Printf("=== RUN   %s\\n--- PASS: %s (0.00s)\\n", name, name)\n\t}\n'
            '\tfmt.Println("PASS")\n\tos.Exit(0)\n}\n\nfunc Add(a, b int) int { return 9 }\n'
        ),
        "runs other tests": (
            'package adder\n\nimport "os"\n\n'
            'func init() { os.Args = append(os.Args[:1], "-test.run=None") }\n\n'
            "func Add(a, b int) int { return 9 }\n"
        ),
    },
    passed=frozenset(
        f"example.com/adder::{name}" for name in ("TestAdd", "TestMore", "TestMore/two")
    ),
)

CTEST = RunnerCase(
    runner=CTestRunner(),
    component="catch2",
    probe="cmake --version && c++ --version && test -e /usr/include/catch2",
    command="ctest",
    plain="cmake -S . -B /tmp/b && cmake --build /tmp/b && ctest --test-dir /tmp/b",
    test="add_test.cpp",
    target="add.h",
    files={
        "CMakeLists.txt": (
            "cmake_minimum_required(VERSION 3.10)\nproject(adder CXX)\n"
            "set(CMAKE_CXX_STANDARD 17)\nfind_package(Catch2 REQUIRED)\n"
            "add_executable(unit add_test.cpp)\n"
            "target_link_libraries(unit PRIVATE Catch2::Catch2WithMain)\n"
            "enable_testing()\nadd_test(NAME unit COMMAND unit)\n"
        ),
        "add_test.cpp": (
            "#if __has_include(<catch2/catch_test_macros.hpp>)\n"
            "#include <catch2/catch_test_macros.hpp>\n#else\n#include <catch2/catch.hpp>\n#endif\n"
            '#include "add.h"\n\n'
            'TEST_CASE("adds") {\n  REQUIRE(add(1, 2) == 3);\n}\n\n'
            'TEST_CASE("adds more") {\n  CHECK(add(2, 2) == 4);\n}\n'
        ),
    },
    right="inline int add(int a, int b) { return a + b; }\n",
    wrong="inline int add(int a, int b) { return a - b; }\n",
    lies={
        "exits": (
            "#include <unistd.h>\nstatic struct Exit {\n  Exit() { _exit(0); }\n} at_once;\n"
            "inline int add(int, int) { return 9; }\n"
        ),
        "exits in a test": (
            "#include <unistd.h>\ninline int add(int, int) {\n  _exit(0);\n  return 9;\n}\n"
        ),
        "redefines macros": (
            "#undef REQUIRE\n#undef CHECK\n"
            "#define REQUIRE(x) (void)(x)\n#define CHECK(x) (void)(x)\n"
            "inline int add(int, int) { return 9; }\n"
        ),
    },
    passed=frozenset({"adds", "adds more"}),
)

_JARS = ":".join(
    f"/usr/share/java/{name}.jar"
    for name in (
        "junit-jupiter-api", "junit-jupiter-engine", "junit-platform-commons",
        "junit-platform-console", "junit-platform-engine", "junit-platform-launcher",
        "junit-platform-reporting", "opentest4j", "opentest4j-reporting-events",
        "apiguardian-api", "picocli",
    )
)  # fmt: skip
_JAVA = (
    f"export CLASSPATH=/tmp/classes:{_JARS} && "
    "javac -d /tmp/classes src/main/java/*.java src/test/java/*.java && "
    "java -XX:TieredStopAtLevel=1 org.junit.platform.console.ConsoleLauncher "
    "--scan-classpath /tmp/classes"
)
_HALT = "Runtime.getRuntime().halt(0);"
JUNIT = RunnerCase(
    runner=JUnitConsoleRunner(),
    component="java",
    probe="javac --version && test -e /usr/share/java/junit-platform-console.jar",
    command=_JAVA,
    plain=_JAVA,
    test="src/test/java/AddTest.java",
    target="src/main/java/Add.java",
    files={
        "src/test/java/AddTest.java": (
            "import static org.junit.jupiter.api.Assertions.assertEquals;\n"
            "import org.junit.jupiter.api.Test;\n\npublic class AddTest {\n"
            "    @Test\n    public void adds() {\n"
            "        assertEquals(3, Add.add(1, 2));\n    }\n\n"
            "    @Test\n    void addsMore() {\n        assertEquals(4, Add.add(2, 2));\n    }\n}\n"
        )
    },
    right="class Add {\n    static int add(int a, int b) { return a + b; }\n}\n",
    wrong="class Add {\n    static int add(int a, int b) { return a - b; }\n}\n",
    lies={
        "halts": (
            f"class Add {{ static {{ {_HALT} }}\n"
            "    static int add(int a, int b) { return 9; }\n}\n"
        ),
        "exits in a test": (
            "class Add { static int add(int a, int b) { System.exit(0); return 9; } }\n"
        ),
        "writes a report": (
            "import java.nio.file.*;\n\nclass Add {\n    static int add(int a, int b) {\n"
            '        try {\n            Path place = Path.of("/tmp/junit-reports");\n'
            "            Files.createDirectories(place);\n"
            '            Files.writeString(place.resolve("TEST-junit-jupiter.xml"), '
            '"<?xml version=\\"1.0\\"?><testsuite><testcase classname=\\"AddTest\\" '
            'name=\\"adds()\\"/><testcase classname=\\"AddTest\\" name=\\"addsMore()\\"/>'
            '</testsuite>");\n'
            f"        }} catch (java.io.IOException error) {{ }}\n        {_HALT}\n"
            "        return 9;\n    }\n}\n"
        ),
    },
    passed=frozenset({"AddTest::adds()", "AddTest::addsMore()"}),
)

CASES = (NODE, JEST, CARGO, GO, CTEST, JUNIT)
