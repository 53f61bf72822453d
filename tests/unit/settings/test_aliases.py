"""Variables of other systems of this kind are understood, and ours win over them."""

import pytest

from assay.settings.load import load_settings


def test_the_address_of_an_executor_selects_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODE_EXECUTOR_HOST", "executor.example.org")
    usual = load_settings().sandbox
    monkeypatch.setenv("CODE_EXECUTOR_PORT", "7000")
    sandbox = load_settings().sandbox
    monkeypatch.setenv("ASSAY_SANDBOX__BACKEND", "native")

    assert usual.remote.addresses == ("executor.example.org:50051",)
    assert (sandbox.backend, sandbox.remote.addresses) == ("remote", ("executor.example.org:7000",))
    assert load_settings().sandbox.backend == "native"


def test_a_port_alone_means_an_executor_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODE_EXECUTOR_PORT", "7000")

    assert load_settings().sandbox.remote.addresses == ("localhost:7000",)


def test_where_an_executor_listens_has_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_HOST", "::1")
    monkeypatch.setenv("GRPC_PORT", "7001")

    assert (load_settings().executor.host, load_settings().executor.port) == ("::1", 7001)
