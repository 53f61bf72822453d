from pathlib import Path

from assay.memory.stored_memory import current_scope, environment_digest, project_of


def test_a_project_is_told_by_its_folder_without_saying_where_it_is(tmp_path: Path) -> None:
    one, other = tmp_path / "a" / "shop", tmp_path / "b" / "shop"

    assert project_of(str(one)) != project_of(str(other))
    assert project_of(str(one)) == project_of(f"{one}/../shop/")
    assert project_of(str(one)).startswith("shop-")
    assert str(tmp_path) not in project_of(str(one))


def test_without_a_folder_there_is_no_project() -> None:
    assert current_scope().project == ""
    assert current_scope().environment == environment_digest() != ""
