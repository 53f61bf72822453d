"""What holds for every test."""

import hypothesis
import pytest

# Deadlines measure the machine, not the code.
hypothesis.settings.register_profile("assay", deadline=None)
hypothesis.settings.load_profile("assay")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run asynchronous tests on the loop the product runs on."""
    return "asyncio"
