import pytest

from benchmarks.two_checkouts import compare


@pytest.mark.parametrize(
    ("after", "code"),
    [
        ((0.010, 100.0), 0),
        ((0.008, 120.0), 0),
        ((0.0104, 96.0), 0),
        ((0.0106, 100.0), 1),
        ((0.010, 94.0), 1),
    ],
)
def test_more_than_five_percent_worse_is_told_by_the_exit_code(
    after: tuple[float, float], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare((0.010, 100.0), after) == code
    assert "p50" in capsys.readouterr().out
