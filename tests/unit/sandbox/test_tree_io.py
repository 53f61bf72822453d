from pathlib import PurePosixPath

from assay.sandbox.tree_io import read_tree
from tests.doubles.fake_sandbox import FakeFile, FakeSandbox

WORK = ("src/target/model.py", "rust/Cargo.toml", "java/pom.xml", "target.py")
LEFT_BEHIND = (
    "rust/target/debug/app",
    "java/target/classes/A.class",
    "src/__pycache__/model.cpython-311.pyc",
    "node_modules/x/i.js",
    ".gradle/x.lock",
)


async def test_a_tree_has_all_work_and_nothing_that_tools_left_behind() -> None:
    files = {PurePosixPath(path): FakeFile(b"x") for path in (*WORK, *LEFT_BEHIND)}

    tree = await read_tree(FakeSandbox(files=files))

    assert {str(path) for path in tree.files} == set(WORK)
