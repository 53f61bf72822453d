from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from assay.contracts.errors import UsageError
from assay.memory.skills import Skill, SkillShelf

SKILL = Skill(
    name="slugs",
    purpose="turn a title into a slug",
    source="def slug(title):\n    return '-'.join(title.lower().split())\n",
    test="from slugs import slug\nassert slug('A b') == 'a-b'\n",
)


@dataclass
class Checked:
    """Stands for the sandbox: a test passes if there is source, unless it is told otherwise."""

    broken: bool = False
    asked: list[str] = field(default_factory=list[str])

    async def __call__(self, skill: Skill) -> bool:
        self.asked.append(skill.source)
        return bool(skill.source) and not self.broken


@pytest.fixture
def check() -> Checked:
    return Checked()


@pytest.fixture
def shelf(tmp_path: Path, check: Checked) -> SkillShelf:
    return SkillShelf(tmp_path / "memory.sqlite", check)


async def test_a_helper_whose_test_passes_is_kept_and_tested_again(
    shelf: SkillShelf, check: Checked
) -> None:
    assert await shelf.keep(SKILL)
    assert await shelf.names() == (("slugs", "turn a title into a slug"),)
    check.asked.clear()

    found = await shelf.reuse("slugs")

    assert found is not None
    assert found.source == SKILL.source
    assert found.passed == 2
    assert check.asked == [SKILL.source]


async def test_a_helper_whose_test_fails_is_not_kept(shelf: SkillShelf, check: Checked) -> None:
    check.broken = True

    assert not await shelf.keep(SKILL)
    assert await shelf.names() == ()


async def test_a_test_that_passes_without_the_helper_proves_nothing(tmp_path: Path) -> None:
    async def always(skill: Skill) -> bool:
        del skill
        return True

    shelf = SkillShelf(tmp_path / "memory.sqlite", always)

    assert not await shelf.keep(SKILL)


async def test_a_helper_that_fails_now_is_not_handed_out(shelf: SkillShelf, check: Checked) -> None:
    await shelf.keep(SKILL)
    check.broken = True

    assert await shelf.reuse("slugs") is None
    check.broken = False
    assert await shelf.reuse("slugs") is not None


async def test_a_helper_that_keeps_failing_is_not_tried_any_more(
    shelf: SkillShelf, check: Checked
) -> None:
    await shelf.keep(SKILL)
    check.broken = True
    for _ in range(3):
        await shelf.reuse("slugs")
    check.broken = False

    assert await shelf.names() == ()
    assert await shelf.reuse("slugs") is None


async def test_a_project_sees_its_own_helpers_and_those_for_all(shelf: SkillShelf) -> None:
    await shelf.keep(SKILL)
    await shelf.keep(replace(SKILL, name="theirs", project="shop"))

    assert [name for name, _ in await shelf.names("shop")] == ["theirs", "slugs"]
    assert [name for name, _ in await shelf.names("other")] == ["slugs"]


@pytest.mark.parametrize(
    "skill",
    [
        replace(SKILL, name="../x"),
        replace(SKILL, source="x" * 50_000),
        replace(SKILL, source="api_key = 'abcdef123456'\n"),
    ],
)
async def test_what_cannot_be_kept_is_refused(shelf: SkillShelf, skill: Skill) -> None:
    with pytest.raises(UsageError):
        await shelf.keep(skill)
