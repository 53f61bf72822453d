import pytest

from bank import Account, Bank, InsufficientFunds


def test_an_account_counts():
    account = Account("ada")
    account.deposit(50)
    account.withdraw(20)
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


@pytest.fixture
def bank():
    bank = Bank()
    bank.open("ada", 100)
    bank.open("bob")
    return bank


def test_a_transfer_moves_money(bank):
    bank.transfer("ada", "bob", 30)
    assert bank.account("ada").balance == 70
    assert bank.account("bob").balance == 30
    assert bank.account("ada").history == [("withdraw", 30)]
    assert bank.account("bob").history == [("deposit", 30)]
    assert bank.total() == 100


def test_a_transfer_that_fails_changes_nothing(bank):
    with pytest.raises(InsufficientFunds):
        bank.transfer("bob", "ada", 1)
    with pytest.raises(KeyError):
        bank.transfer("ada", "eve", 1)
    with pytest.raises(ValueError):
        bank.transfer("ada", "bob", 0)
    assert bank.account("ada").balance == 100
    assert bank.account("ada").history == []


def test_an_owner_has_one_account(bank):
    with pytest.raises(ValueError):
        bank.open("ada")


def test_the_unknown_is_a_key_error(bank):
    with pytest.raises(KeyError):
        bank.account("eve")
