from anagrams import group_anagrams


def test_anagrams_are_grouped():
    words = ["listen", "apple", "silent", "night", "enlist", "thing"]
    assert group_anagrams(words) == [["listen", "silent", "enlist"], ["night", "thing"]]


def test_case_does_not_matter():
    assert group_anagrams(["Tea", "eat", "ATE"]) == [["Tea", "eat", "ATE"]]


def test_nothing_is_nothing():
    assert group_anagrams([]) == []


def test_words_alone_are_left_out():
    assert group_anagrams(["one", "two"]) == []
