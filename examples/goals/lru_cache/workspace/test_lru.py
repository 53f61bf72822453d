import pytest

from lru import LRUCache


def test_what_was_put_can_be_got():
    cache = LRUCache(2)
    cache.put("a", 1)
    assert cache.get("a") == 1
    assert cache.get("b") is None
    assert cache.get("b", 7) == 7


def test_the_least_recently_used_goes_first():
    cache = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.get("a")
    cache.put("c", 3)
    assert cache.keys() == ["a", "c"]
    assert cache.get("b") is None


def test_putting_again_renews_and_does_not_grow():
    cache = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.put("a", 3)
    assert len(cache) == 2
    assert cache.keys() == ["b", "a"]
    assert cache.get("a") == 3


def test_asking_with_in_is_no_use():
    cache = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert "a" in cache
    assert "z" not in cache
    cache.put("c", 3)
    assert "a" not in cache


def test_none_is_a_value():
    cache = LRUCache(1)
    cache.put("a", None)
    assert cache.get("a", "missing") is None


def test_capacity_has_to_be_positive():
    with pytest.raises(ValueError):
        LRUCache(0)
