"""The files of a state come back as they were, or not at all."""

from pathlib import PurePosixPath

from assay.contracts.errors import JournalError
from assay.contracts.ports import Journal
from assay.contracts.workspace import Tree, TreeFile
from tests.conformance.journal.promise import JournalSubject, promise

_TREE = Tree(
    files={
        PurePosixPath("a.py"): TreeFile(b"print('a')\n"),
        PurePosixPath("bin/run"): TreeFile(b"#!/bin/sh\n", executable=True),
        PurePosixPath("bin/same"): TreeFile(b"#!/bin/sh\n"),
        PurePosixPath("data/\udcff bytes"): TreeFile(bytes(range(256))),
        PurePosixPath("empty"): TreeFile(b""),
    },
    links=(PurePosixPath("bin/link"),),
)


@promise
async def a_state_comes_back_whole(subject: JournalSubject) -> None:
    async with subject.open() as journal:
        digest = await journal.store_tree(_TREE)

        assert digest == _TREE.digest
        assert await journal.load_tree(digest) == _TREE


@promise
async def a_state_outlives_the_journal(subject: JournalSubject) -> None:
    changed = _TREE.without([PurePosixPath("a.py")])
    async with subject.open() as journal:
        await journal.store_tree(_TREE)
        await journal.store_tree(changed)
        await journal.store_tree(_TREE)
    async with subject.open() as journal:
        assert await journal.load_tree(_TREE.digest) == _TREE
        assert await journal.load_tree(changed.digest) == changed


@promise
async def a_state_without_files_is_a_state(subject: JournalSubject) -> None:
    async with subject.open() as journal:
        digest = await journal.store_tree(Tree())

        assert await journal.load_tree(digest) == Tree()


@promise
async def a_state_that_was_not_kept_is_an_error(subject: JournalSubject) -> None:
    async with subject.open() as journal:
        assert await _is_refused(journal, _TREE.digest)
        assert await _is_refused(journal, "../../secret")
        assert await _is_refused(journal, "")


@promise
async def a_state_that_was_changed_is_an_error(subject: JournalSubject) -> None:
    async with subject.open() as journal:
        digest = await journal.store_tree(_TREE)
    subject.damage_tree(digest)
    async with subject.open() as journal:
        assert await _is_refused(journal, digest)


@promise
async def without_room_storing_fails_and_can_be_done_again(subject: JournalSubject) -> None:
    async with subject.open() as journal:
        with subject.no_room():
            try:
                await journal.store_tree(_TREE)
            except JournalError:
                refused = True
            else:
                refused = False

        assert refused, "it was said to be kept, and there was no room"
        assert await _is_refused(journal, _TREE.digest)
        assert await journal.load_tree(await journal.store_tree(_TREE)) == _TREE


async def _is_refused(journal: Journal, digest: str) -> bool:
    try:
        await journal.load_tree(digest)
    except JournalError:
        return True
    return False
