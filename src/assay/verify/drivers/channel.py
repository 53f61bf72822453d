"""The way a report leaves the process of the tests: a sealed, numbered line for each fact.

The code under test lives in the same process, so all that is needed is taken before any of it is
imported, and only what cannot be replaced: functions written in C, and types that are built in.
The key changes with every line, so that one found later cannot rewrite what was already said.
"""

import os
from _json import encode_basestring_ascii  # the C function: json's own can be replaced
from _thread import RLock
from collections.abc import Callable, Sequence
from hashlib import sha256

Say = Callable[[Sequence[str]], None]


def open_channel(key: bytes) -> Say:
    """Keep the real standard output for the report, and give the program the other stream."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    write, this_process, owner = os.write, os.getpid, os.getpid()
    quote, digest = encode_basestring_ascii, sha256
    secret, number = key, 0
    # Facts come from threads of the tests too, and a line must not begin within another.
    one_at_a_time = RLock()

    def say(fields: Sequence[str]) -> None:
        nonlocal secret, number
        # A child that was forked by a test has this descriptor too, and goes on where it left.
        if this_process() != owner:
            return
        with one_at_a_time:
            body = f"{number} [{','.join([quote(field) for field in fields])}]".encode("ascii")
            seal = digest(secret + digest(secret + body).digest()).hexdigest()[:32]
            secret, number = digest(secret + b"next").digest(), number + 1
            line = seal.encode("ascii") + b" " + body + b"\n"
            while line:
                line = line[write(descriptor, line) :]

    return say
