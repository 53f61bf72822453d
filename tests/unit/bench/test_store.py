"""Results survive a crash at any byte, and nobody mixes two runs in one folder."""

from pathlib import Path

import pytest

from assay.bench.store import RESULTS, Result, Status, open_store, read_results
from assay.contracts.errors import JournalError, UsageError

ASKED = {"suite": "mine", "tries": 2}


def a_result(number: int, status: Status = Status.PASSED) -> Result:
    return Result(
        exercise=f"python/e{number}", language="python", repeat=1, track="blind", status=status
    )


async def test_what_was_written_is_read_back_in_order(tmp_path: Path) -> None:
    async with open_store(tmp_path / "out", ASKED) as store:
        for number in (2, 1):
            await store.append(a_result(number))
    assert read_results(tmp_path / "out") == (a_result(1), a_result(2))


async def test_the_last_of_two_results_counts(tmp_path: Path) -> None:
    async with open_store(tmp_path / "out", ASKED) as store:
        await store.append(a_result(1, Status.INFRASTRUCTURE))
        await store.append(a_result(1))
    (result,) = read_results(tmp_path / "out")
    assert result.passed


@pytest.mark.parametrize("cut", [1, 10, 60])
async def test_a_line_that_a_crash_cut_is_left_out_and_written_over(
    tmp_path: Path, cut: int
) -> None:
    async with open_store(tmp_path / "out", ASKED) as store:
        await store.append(a_result(1))
        await store.append(a_result(2))
    path = tmp_path / "out" / RESULTS
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_results(tmp_path / "out") == (a_result(1),)
    async with open_store(tmp_path / "out", ASKED) as store:
        await store.append(a_result(3))
    assert read_results(tmp_path / "out") == (a_result(1), a_result(3))


async def test_a_damaged_line_in_the_middle_is_told(tmp_path: Path) -> None:
    async with open_store(tmp_path / "out", ASKED) as store:
        await store.append(a_result(1))
    path = tmp_path / "out" / RESULTS
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(JournalError, match=r"results\.jsonl:1"):
        read_results(tmp_path / "out")


async def test_only_the_same_order_goes_on(tmp_path: Path) -> None:
    async with open_store(tmp_path / "out", ASKED):
        pass
    with pytest.raises(UsageError, match="is a run with tries 2, not 1"):
        async with open_store(tmp_path / "out", {**ASKED, "tries": 1}):
            pass


async def test_two_do_not_work_on_one_folder_at_once(tmp_path: Path) -> None:
    async with open_store(tmp_path / "out", ASKED):
        with pytest.raises(UsageError, match="works on"):
            async with open_store(tmp_path / "out", ASKED):
                pass


async def test_somebody_elses_folder_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(UsageError, match="not empty"):
        async with open_store(tmp_path, ASKED):
            pass


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        read_results(tmp_path)


def test_only_what_says_something_about_the_model_is_final() -> None:
    assert {status for status in Status if not a_result(1, status).counted} == {
        Status.INFRASTRUCTURE,
        Status.NOT_RUN,
    }
