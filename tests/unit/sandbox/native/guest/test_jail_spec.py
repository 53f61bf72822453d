import json

import pytest

from assay.sandbox.native.guest.jail_spec import JailSpec, RootPlan, Tier, spec_from_json


def a_plan(*, tier: Tier = "namespaces", drop_to_id: int | None = None) -> JailSpec:
    return JailSpec(
        tier=tier,
        root=RootPlan(
            binds=(("/usr", "/usr"), ("/a b", "/c\nd")),
            copies=(("/etc/localtime", "/etc/localtime"),),
            links=(("/bin", "usr/bin"),),
            files=(("/etc/x", 'a "quoted"\nline é'),),
        ),
        argv=("/python", "-c", "pass"),
        env=(("A", "b=c"), ("EMPTY", "")),
        seccomp_hex="00ff",
        readable=("/usr", "/lib"),
        scratch="/run/assay/1/boxes",
        drop_to_id=drop_to_id,
        stages=(("numpy", "pandas"), ("sklearn",)),
        remove=("/sys/fs/cgroup/x", "/run/assay/1"),
    )


@pytest.mark.parametrize(
    "plan",
    [
        a_plan(),
        a_plan(drop_to_id=1_600_000_001),
        a_plan(tier="landlock"),
        JailSpec(
            tier="namespaces",
            root=RootPlan(),
            argv=(),
            env=(),
            seccomp_hex="",
            readable=(),
            scratch="",
        ),
    ],
    ids=["ordinary user", "root", "landlock", "empty"],
)
def test_a_plan_arrives_as_it_was_sent(plan: JailSpec) -> None:
    assert spec_from_json(plan.to_json()) == plan


def test_a_path_that_is_not_utf_8_arrives_as_it_was_sent() -> None:
    odd = b"/caf\xe9".decode("utf-8", "surrogateescape")
    plan = JailSpec(
        tier="namespaces",
        root=RootPlan(binds=((odd, "/opt"),)),
        argv=(),
        env=(),
        seccomp_hex="",
        readable=(),
        scratch=odd,
    )

    assert spec_from_json(plan.to_json()) == plan


@pytest.mark.parametrize("field", ["tier", "root", "seccomp_hex", "drop_to_id", "remove"])
def test_a_plan_with_something_missing_is_not_filled_in(field: str) -> None:
    fields = json.loads(a_plan().to_json())
    del fields[field]

    with pytest.raises(KeyError):
        spec_from_json(json.dumps(fields).encode())
