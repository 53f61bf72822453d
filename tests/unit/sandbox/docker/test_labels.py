import os

from assay.sandbox.docker.labels import ContainerRecord, owner_labels, place, read_record

NOW = 1_000_000.0


def read(labels: dict[str, str], *, state: str = "running") -> ContainerRecord:
    found = {"Id": "abc", "Names": ["/assay-1"], "Image": "x", "State": state, "Labels": labels}
    return read_record(found, here=place(), now=NOW)


def test_our_own_containers_are_owned() -> None:
    record = read(owner_labels())

    assert record.state == "owned"
    assert record.owner.pid == os.getpid()
    assert record.name == "assay-1"


def test_a_container_whose_owner_is_gone_is_orphaned() -> None:
    dead = owner_labels() | {"dev.assay.owner.started": "1"}

    assert read(dead).state == "orphaned"


def test_owners_in_another_pid_namespace_are_not_judged() -> None:
    elsewhere = owner_labels() | {
        "dev.assay.owner.place": "other/pid:[1]",
        "dev.assay.owner.pid": "1",
        "dev.assay.since": "0",
    }

    assert read(elsewhere).state == "elsewhere"


def test_what_nobody_has_started_in_a_long_time_is_orphaned_wherever_it_came_from() -> None:
    elsewhere = owner_labels() | {
        "dev.assay.owner.place": "other/pid:[1]",
        "dev.assay.since": f"{NOW - 3600}",
    }

    assert read(elsewhere, state="created").state == "orphaned"
    fresh = elsewhere | {"dev.assay.since": f"{NOW - 5}"}
    assert read(fresh, state="created").state == "elsewhere"


def test_labels_of_nonsense_harm_no_one() -> None:
    nonsense = {"dev.assay.owner.pid": "-1; rm", "dev.assay.since": "yesterday"}

    record = read(nonsense)

    assert record.owner.pid == 0
    assert record.since == 0.0
