"""Threads for real cores, and no more than were granted."""

import os
from pathlib import Path

from assay.models.local.llama_process import worthwhile_threads


def siblings(system: Path, processor: int, text: str) -> None:
    folder = system / f"devices/system/cpu/cpu{processor}/topology"
    folder.mkdir(parents=True)
    (folder / "thread_siblings_list").write_text(text)


def grant(system: Path, text: str) -> None:
    (system / "fs/cgroup").mkdir(parents=True)
    (system / "fs/cgroup/cpu.max").write_text(text)


def test_two_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for processor in os.sched_getaffinity(0):
        siblings(tmp_path, processor, "0-1\n")

    assert worthwhile_threads(tmp_path) == 1


def test_a_container_gets_no_more_than_its_quota(tmp_path: Path) -> None:
    grant(tmp_path, "50000 100000\n")

    assert worthwhile_threads(tmp_path) == 1


def test_without_a_quota_the_cores_decide(tmp_path: Path) -> None:
    grant(tmp_path, "max 100000\n")

    assert worthwhile_threads(tmp_path) == min(len(os.sched_getaffinity(0)), 8)
