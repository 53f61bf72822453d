import pytest

from slugify import slugify


@pytest.mark.parametrize(
    ("title", "slug"),
    [
        ("Hello World", "hello-world"),
        ("  Spaces   everywhere  ", "spaces-everywhere"),
        ("Café au lait", "cafe-au-lait"),
        ("C++ & Rust, a comparison!", "c-rust-a-comparison"),
        ("already-a-slug", "already-a-slug"),
        ("under_scores too", "under-scores-too"),
        ("Ünïcödé 2024", "unicode-2024"),
    ],
)
def test_titles_become_slugs(title, slug):
    assert slugify(title) == slug


@pytest.mark.parametrize("title", ["", "   ", "!!!", "---"])
def test_nothing_left_is_untitled(title):
    assert slugify(title) == "untitled"
