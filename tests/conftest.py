"""What holds for every test."""

import gc
import os
import signal
from collections.abc import Generator

import hypothesis
import pytest

from tests.support.postgres import find_postgres, postgres
from tests.support.requirements import count_missing, require

# A child that a test forks must have neither the threads nor the garbage of gRPC, which other
# tests of the same process have used: its handlers start threads there, and its objects cannot be
# taken apart without them.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # noqa: TID251 - for a library, not for us
os.register_at_fork(after_in_child=gc.freeze)

# Tests send these signals to commands, which would ignore them if a shell or `nohup` started the
# tests with the signals ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Deadlines measure the machine, not the code.
hypothesis.settings.register_profile("assay", deadline=None)
hypothesis.settings.load_profile("assay")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """Count what was skipped by the component that is missing on this machine."""
    yield  # the list of all that was skipped
    skipped = terminalreporter.getreports("skipped")
    if skipped:
        counts = count_missing(str(report.longrepr) for report in skipped)
        terminalreporter.write_line(f"skipped for missing components: {counts}")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run asynchronous tests on the loop the product runs on."""
    return "asyncio"


@pytest.fixture(scope="module")
def postgres_server() -> Generator[str]:
    """Start a PostgreSQL server."""
    programs = find_postgres()
    require("postgres", available=programs is not None, why="there is no PostgreSQL here")
    assert programs is not None
    with postgres(programs) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """Choose where the service keeps its lists: in a file, or in an empty database of a server."""
    if request.param == "sqlite":
        return ""
    import psycopg

    found: str = request.getfixturevalue("postgres_server")
    with psycopg.connect(found) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return found
