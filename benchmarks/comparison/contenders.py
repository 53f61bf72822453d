"""The compared sandboxes, in the order of the tables."""

from functools import partial
from typing import Final

from assay.settings.load import SandboxSettings
from benchmarks.comparison import runners
from benchmarks.comparison.runners import Contender
from benchmarks.comparison.targets import BARE, DOCKER_RUN, ON_DEMAND, POOL

POOL_SIZE: Final = 3
_FRESH: Final = "open + run + close, fresh"
# Its `close` takes ten seconds, so it runs only a few times.
_FEW: Final = 3


def _native(pool_size: int) -> SandboxSettings:
    return SandboxSettings(backend="native", pool_size=pool_size)


CONTENDERS: Final = (
    Contender(
        name=POOL,
        label="Assay native, pool",
        timed=_FRESH,
        open=partial(runners.open_native, _native(POOL_SIZE)),
    ),
    Contender(
        name=ON_DEMAND,
        label="Assay native, on demand",
        timed=_FRESH,
        open=partial(runners.open_native, _native(0)),
    ),
    Contender(
        name=BARE,
        label="bare python3 -c",
        timed="start to exit, no isolation",
        open=runners.open_bare,
    ),
    Contender(
        name="bwrap",
        label="bubblewrap",
        timed="start to exit, fresh",
        open=runners.open_bubblewrap,
    ),
    Contender(
        name="docker-exec",
        label="docker exec",
        timed="start to exit, same container",
        open=runners.open_docker_exec,
    ),
    Contender(
        name=DOCKER_RUN,
        label="docker run",
        timed="start to removal, fresh",
        open=runners.open_docker_run,
    ),
    Contender(
        name="llm-sandbox",
        label="llm-sandbox, session",
        timed="run, same session",
        open=partial(runners.open_llm_sandbox, shared=True),
        counts_rate=False,
    ),
    Contender(
        name="llm-sandbox-fresh",
        label="llm-sandbox",
        timed=_FRESH,
        open=partial(runners.open_llm_sandbox, shared=False),
        most_rounds=_FEW,
        counts_rate=False,
    ),
)
NAMES: Final = tuple(contender.name for contender in CONTENDERS)


def contender(name: str) -> Contender:
    return CONTENDERS[NAMES.index(name)]
