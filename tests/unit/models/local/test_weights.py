"""The table of models that can be fetched."""

import pytest

from assay.contracts.errors import UsageError
from assay.models.local.weights import FileSource, PackagesSource, known_weights, weights_named


def test_the_larger_model_is_the_default() -> None:
    assert list(known_weights()) == ["qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"]


@pytest.mark.parametrize("name", known_weights())
def test_a_model_comes_from_its_makers_first_and_by_an_encrypted_line(name: str) -> None:
    first = weights_named(name).source[0]

    assert isinstance(first, FileSource)
    assert first.url.startswith("https://")


@pytest.mark.parametrize("name", known_weights())
def test_the_parts_of_a_model_make_up_its_size(name: str) -> None:
    weights = weights_named(name)

    for source in weights.source:
        if isinstance(source, PackagesSource):
            whole_parts = (source.parts - 1) * source.part_bytes
            assert 0 < weights.size_bytes - whole_parts <= source.part_bytes


def test_an_unknown_model_is_answered_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no embedded model 'gpt'") as caught:
        weights_named("gpt")

    assert "qwen2.5-coder-0.5b" in caught.value.hint
