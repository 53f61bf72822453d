from pathlib import Path, PurePosixPath

from assay.contracts.execution import Limits
from assay.contracts.workspace import Tree, TreeFile
from assay.sandbox.tree_io import open_tree, read_changes, update_tree
from assay.storage.layers import LayerStore
from tests.doubles.fake_sandbox import FakeBackend, FakeFile, FakeSandbox

WORK = ("src/target/model.py", "rust/Cargo.toml", "java/pom.xml", "target.py", "cpp/build.sh")
LEFT_BEHIND = (
    "rust/target/debug/app",
    "java/target/classes/A.class",
    "src/__pycache__/model.cpython-311.pyc",
    "node_modules/x/i.js",
    ".gradle/x.lock",
    "cpp/build/CMakeCache.txt",
    "cpp/build/CMakeFiles/a.o",
)


def path(name: str) -> PurePosixPath:
    return PurePosixPath(name)


def captured(tmp_path: Path) -> Tree:
    folder = tmp_path / "workspace"
    (folder / "pkg" / "inner").mkdir(parents=True)
    for name in ("a.py", "b.py", "pkg/c.py", "pkg/inner/d.py"):
        (folder / name).write_text(f"name = {name!r}\n")
    return LayerStore(tmp_path / "state").capture(folder)


async def test_a_tree_has_all_work_and_nothing_that_tools_left_behind() -> None:
    files = {path(name): FakeFile(b"x") for name in (*WORK, *LEFT_BEHIND)}

    tree = await read_changes(FakeSandbox(files=files), Tree())

    assert {str(path) for path in tree.files} == set(WORK)


async def test_a_tree_with_a_layer_is_opened_and_read_back(tmp_path: Path) -> None:
    layer = captured(tmp_path)
    tree = layer.without([path("a.py")]).with_files({path("new/e.py"): TreeFile(b"e = 1\n")})

    async with open_tree(FakeBackend(), Limits(), tree) as sandbox:
        assert {entry.path for entry in await sandbox.list_files() if entry.kind == "file"} == {
            *tree.files
        }
        assert await sandbox.read_file(path("b.py")) == tree.files[path("b.py")].content
        again = await read_changes(sandbox, tree)

    assert again == tree
    assert again.origin is tree.origin


async def test_only_what_changed_is_another_object(tmp_path: Path) -> None:
    tree = captured(tmp_path)
    async with open_tree(FakeBackend(), Limits(), tree) as sandbox:
        await sandbox.write_file(path("b.py"), b"b = 2\n")
        await sandbox.remove_path(path("pkg"))
        await sandbox.write_file(path("pkg"), b"a file in place of a folder\n")

        now = await read_changes(sandbox, tree)

    assert {str(path) for path in now.files} == {"a.py", "b.py", "pkg"}
    assert now.files[path("a.py")] is tree.files[path("a.py")]
    assert now.files[path("b.py")].content == b"b = 2\n"


async def test_a_sandbox_is_changed_from_one_tree_to_another(tmp_path: Path) -> None:
    tree = captured(tmp_path)
    other = tree.without([path("pkg/c.py")]).with_files(
        {path("a.py"): TreeFile(b"a = 2\n", executable=True)}
    )
    async with open_tree(FakeBackend(), Limits(), tree) as sandbox:
        await update_tree(sandbox, tree, other)

        assert await read_changes(sandbox, tree) == other
