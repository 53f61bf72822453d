"""Places of a value in a sorted list."""


def first_place(values, wanted):
    """Return the index of the first equal value, or -1."""
    low, high = 0, len(values) - 1
    found = -1
    while low < high:
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 1
        elif values[middle] > wanted:
            high = middle - 1
        else:
            found = middle
            high = middle - 1
    return found


def last_place(values, wanted):
    """Return the index of the last equal value, or -1."""
    low, high = 0, len(values) - 1
    found = -1
    while low <= high:
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 1
        elif values[middle] > wanted:
            high = middle - 1
        else:
            found = middle
            low = middle + 1
    return found


def count(values, wanted):
    """Return how often a value is in the list."""
    first = first_place(values, wanted)
    if first == -1:
        return 0
    return last_place(values, wanted) - first + 1
