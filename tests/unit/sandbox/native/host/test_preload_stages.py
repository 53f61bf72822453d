import pytest

from assay.contracts.execution import Command, PythonCode
from assay.sandbox.native.host.program import installed_stages, needed_stages, suitable_stage

STAGES = (("numpy", "pandas"), ("matplotlib.pyplot", "sklearn"))


def stage_of(source: bytes) -> int:
    return suitable_stage(PythonCode(source=source), STAGES)


@pytest.mark.parametrize(
    ("source", "stage"),
    [
        (b"", 0),
        (b"print(1)", 0),
        (b"import os, sys", 0),
        (b"from os.path import join", 0),
        (b"import numpy", 1),
        (b"import numpy as np", 1),
        (b"import os, numpy as np", 1),
        (b"import numpy.linalg", 1),
        (b"from pandas import DataFrame", 1),
        (b"def f():\n\timport pandas", 1),
        (b"import matplotlib", 2),
        (b"import matplotlib.pyplot as plt", 2),
        (b"from sklearn.svm import SVC", 2),
        (b"import numpy\nimport sklearn", 2),
        (b"import numpy, sklearn", 2),
        (b"import pandas as pd\nimport pyarrow", 0),
        (b"import pandas as pd\npd.Series(['a'], dtype='string[pyarrow]')", 0),
    ],
)
def test_a_program_gets_the_smallest_stage_that_has_what_it_imports(
    source: bytes, stage: int
) -> None:
    assert stage_of(source) == stage


def test_what_we_do_not_know_may_import_anything_in_turn() -> None:
    assert stage_of(b"import helpers_in_the_workspace") == len(STAGES)


@pytest.mark.parametrize(
    "source",
    [b"x = 'import pandas'", b"# import pandas", b"important = numpy = 1", b"\xff\xfeimport numpy"],
)
def test_text_that_is_no_import_asks_for_nothing(source: bytes) -> None:
    assert stage_of(source) == 0


def test_bytes_that_are_no_text_do_not_stop_the_guess() -> None:
    assert stage_of(b"\xff\nimport numpy") == 1


def test_a_command_needs_no_library_of_ours() -> None:
    assert suitable_stage(Command(argv=("python3", "-c", "import numpy")), STAGES) == 0


def test_without_stages_there_is_only_the_bare_one() -> None:
    assert suitable_stage(PythonCode(source=b"import numpy"), ()) == 0


def test_what_is_not_installed_is_left_out_and_an_empty_stage_with_it() -> None:
    stages = (("json", "not_installed_at_all"), ("not_installed_at_all.sub",), ("email.message",))

    assert installed_stages(stages) == (("json",), ("email.message",))


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        (b"print(1)", ()),
        (b"import pandas", (("numpy", "pandas"),)),
        (b"import sklearn", STAGES),
    ],
)
def test_for_a_single_program_only_its_own_stages_are_imported(
    source: bytes, needed: tuple[tuple[str, ...], ...]
) -> None:
    assert needed_stages(PythonCode(source=source), STAGES) == needed
