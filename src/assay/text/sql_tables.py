"""SQL for tables whose rows are dataclasses. The same statements fit SQLite and PostgreSQL."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")


class Statements(Protocol):
    """Executes statements in the thread of a database. Values stand for `?`."""

    def run(self, sql: str, values: Sequence[object] = ()) -> int:
        """Execute a statement; return the number of changed rows."""
        ...

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Query rows."""
        ...


class Table(Generic[R]):
    """A table whose columns are the fields of a dataclass, in their order."""

    def __init__(
        self,
        name: str,
        row: type[R],
        *,
        key: Sequence[str] = ("id",),
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        """Map rows to a table; `key` lists the columns of its primary key.

        `renamed` maps a field to its column, where the names differ.
        """
        self._row = row
        self._fields = [field.name for field in fields(row)]
        # PostgreSQL does not convert between its integers and truth values.
        self._flags = {field.name for field in fields(row) if field.type is bool}
        columns = [(renamed or {}).get(field, field) for field in self._fields]
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        updates = ", ".join(f"{one} = excluded.{one}" for one in columns if one not in key)
        self.select: Final = f"SELECT {names} FROM {name}"  # noqa: S608 - constant names
        self._insert = f"INSERT INTO {name} ({names}) VALUES ({marks})"  # noqa: S608 - as above
        self._upsert = f"{self._insert} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {updates}"

    def add(self, database: Statements, row: R) -> None:
        """Insert a row."""
        database.run(self._insert, self._values(row))

    def put(self, database: Statements, row: R) -> None:
        """Insert a row, or replace the one with the same key."""
        database.run(self._upsert, self._values(row))

    def all(
        self, database: Statements, rest: str = "", values: Iterable[object] = ()
    ) -> tuple[R, ...]:
        """Return the rows of a query; `rest` follows the name of the table."""
        found = database.rows(f"{self.select} {rest}", tuple(values))
        return tuple(self._row(**self._read(columns)) for columns in found)

    def first(
        self, database: Statements, rest: str = "", values: Iterable[object] = ()
    ) -> R | None:
        """Return the first row of a query; None if there is none."""
        return next(iter(self.all(database, rest, values)), None)

    def _values(self, row: R) -> list[object]:
        values = [getattr(row, name) for name in self._fields]
        return [int(value) if isinstance(value, bool) else value for value in values]

    def _read(self, columns: tuple[Any, ...]) -> dict[str, Any]:
        found = dict(zip(self._fields, columns, strict=True))
        return found | {name: bool(found[name]) for name in self._flags}
