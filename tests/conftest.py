"""What holds for every test."""

import gc
import os

import hypothesis
import pytest

# A child that a test forks must have neither the threads nor the garbage of gRPC, which other
# tests of the same process have used: its handlers start threads there, and its objects cannot be
# taken apart without them.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # noqa: TID251 - for a library, not for us
os.register_at_fork(after_in_child=gc.freeze)

# Deadlines measure the machine, not the code.
hypothesis.settings.register_profile("assay", deadline=None)
hypothesis.settings.load_profile("assay")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run asynchronous tests on the loop the product runs on."""
    return "asyncio"
