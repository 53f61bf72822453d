import pytest

from bank import Account, InsufficientFunds


def test_an_account_counts():
    account = Account("ada")
    account.deposit(50)
    account.withdraw(20)
    assert account.owner == "ada"
    assert account.balance == 30
    assert account.history == [("deposit", 50), ("withdraw", 20)]


@pytest.mark.parametrize("amount", [0, -5])
def test_amounts_are_positive(amount):
    account = Account("ada", 10)
    with pytest.raises(ValueError):
        account.deposit(amount)
    with pytest.raises(ValueError):
        account.withdraw(amount)
    assert account.balance == 10


def test_nobody_takes_more_than_there_is():
    account = Account("ada", 10)
    with pytest.raises(InsufficientFunds):
        account.withdraw(11)
    assert account.balance == 10
    assert account.history == []


def test_a_transfer_moves_money():
    ada, bob = Account("ada", 100), Account("bob")
    ada.transfer(bob, 30)
    assert (ada.balance, bob.balance) == (70, 30)
    assert ada.history == [("withdraw", 30)]
    assert bob.history == [("deposit", 30)]


def test_a_transfer_that_fails_changes_nothing():
    ada, bob = Account("ada", 100), Account("bob")
    with pytest.raises(InsufficientFunds):
        bob.transfer(ada, 1)
    assert (ada.balance, bob.balance) == (100, 0)
    assert ada.history == bob.history == []
