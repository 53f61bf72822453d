"""A small stock list."""


class Inventory:
    def __init__(self):
        self._items = {}

    def add(self, name, quantity, price):
        if quantity <= 0:
            raise ValueError("quantity must be positive")
        if name in self._items:
            old_quantity, _ = self._items[name]
            self._items[name] = (old_quantity + quantity, price)
        else:
            self._items[name] = (quantity, price)

    def remove(self, name, quantity):
        if name not in self._items:
            raise KeyError(name)
        old_quantity, price = self._items[name]
        self._items[name] = (old_quantity - quantity, price)
        if self._items[name][0] == 0:
            del self._items[name]

    def quantity(self, name):
        return self._items.get(name, (0, 0))[0]

    def total_value(self):
        return sum(quantity * price for quantity, price in self._items.values())

    def names(self):
        return sorted(self._items)
