import subprocess
import sys


def run(*arguments):
    command = [sys.executable, "wordcount.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_three_words_by_default(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("The cat and the dog. The END, and a cat!")
    result = run(str(file))
    assert result.stdout.splitlines() == ["the 3", "and 2", "cat 2"]
    assert result.returncode == 0


def test_as_many_as_wanted(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("b a b c")
    assert run(str(file), "1").stdout.splitlines() == ["b 2"]
    assert run(str(file), "9").stdout.splitlines() == ["b 2", "a 1", "c 1"]


def test_digits_are_not_words(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("x1 x2 42")
    assert run(str(file)).stdout.splitlines() == ["x 2"]


def test_a_missing_file_is_an_error():
    result = run("nowhere.txt")
    assert result.returncode == 2
    assert result.stderr
    assert not result.stdout
