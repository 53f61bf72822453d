import pytest

from inventory import Inventory


@pytest.fixture
def stock():
    inventory = Inventory()
    inventory.add("bolt", 10, 0.5)
    inventory.add("nut", 4, 0.25)
    return inventory


def test_quantities_are_counted(stock):
    assert stock.quantity("bolt") == 10
    assert stock.quantity("screw") == 0


def test_adding_again_sets_the_price(stock):
    stock.add("bolt", 5, 1.0)
    assert stock.quantity("bolt") == 15
    assert stock.total_value() == pytest.approx(16.0)


def test_removing_some_leaves_the_rest(stock):
    stock.remove("bolt", 3)
    assert stock.quantity("bolt") == 7


def test_removing_all_removes_the_name(stock):
    stock.remove("nut", 4)
    assert stock.names() == ["bolt"]


def test_removing_too_much_is_refused(stock):
    with pytest.raises(ValueError):
        stock.remove("nut", 5)
    assert stock.quantity("nut") == 4


def test_removing_the_unknown_is_an_error(stock):
    with pytest.raises(KeyError):
        stock.remove("screw", 1)


def test_quantities_are_positive(stock):
    with pytest.raises(ValueError):
        stock.add("bolt", 0, 1.0)
