"""The shell of a project: variables for its programs, and texts that stay as they are."""

import pytest

from assay.contracts.workspace import project_script

ADDED = "${ASSAY_PACKAGES:+:$ASSAY_PACKAGES}"


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("PYTHONPATH=src pytest", f"PYTHONPATH=src{ADDED} pytest"),
        ("A=1 PYTHONPATH='a b' x", f"A=1 PYTHONPATH='a b'{ADDED} x"),
        ("cd x && export PYTHONPATH=src", f"cd x && export PYTHONPATH=src{ADDED}"),
        ("echo 'PYTHONPATH=src' > f", "echo 'PYTHONPATH=src' > f"),
        ("cat <<X\nPYTHONPATH=src\nX", "cat <<X\nPYTHONPATH=src\nX"),
        ("MYPYTHONPATH=src x", "MYPYTHONPATH=src x"),
    ],
)
def test_a_search_path_of_a_program_keeps_the_packages(script: str, end: str) -> None:
    assert project_script(script)[-1].endswith(f"; }}; {end}")
