"""Helpers that a real sandbox has tested: before they are kept, and before they are reused."""

from pathlib import Path

from assay.contracts.execution import Limits
from assay.memory.skills import Skill, SkillShelf, check_in
from assay.settings import SandboxSettings
from assay.wiring import open_backend

RIGHT = "def slug(title):\n    return '-'.join(title.lower().split())\n"
WRONG = "def slug(title):\n    return title\n"
TEST = "from slugs import slug\nassert slug('A b') == 'a-b'\n"


def a_skill(source: str, test: str = TEST) -> Skill:
    return Skill(name="slugs", purpose="turn a title into a slug", source=source, test=test)


async def test_only_helpers_that_a_sandbox_has_seen_pass_are_kept(tmp_path: Path) -> None:
    settings = SandboxSettings(preload=(), pool_size=0, runtime_dir=tmp_path / "runtime")
    async with open_backend(settings) as backend:
        check = check_in(lambda: backend.open_sandbox(Limits()))
        shelf = SkillShelf(tmp_path / "memory.sqlite", check)

        assert not await shelf.keep(a_skill(WRONG))
        assert not await shelf.keep(a_skill(RIGHT, test="print('fine')\n"))
        assert await shelf.keep(a_skill(RIGHT))
        found = await shelf.reuse("slugs")

    assert found is not None
    assert found.source == RIGHT
    assert found.passed == 2
