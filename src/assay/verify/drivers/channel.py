"""The report channel of the test process: one sealed, numbered line for each fact.

The code under test runs in the same process. The channel therefore takes its functions before that
code is imported, and only ones that cannot be replaced: C functions and built-in types. The key
changes with every line, so that a stolen key cannot rewrite earlier lines.
"""

import os
from _json import encode_basestring_ascii  # the C function: json's own can be replaced
from _thread import RLock
from collections.abc import Callable, Sequence
from hashlib import sha256

Say = Callable[[Sequence[str]], None]


def open_channel(key: bytes) -> Say:
    """Reserve the real standard output for the report; the program gets standard error instead."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    write, this_process, owner = os.write, os.getpid, os.getpid()
    quote, digest = encode_basestring_ascii, sha256
    secret, number = key, 0
    # Threads of the tests report facts too, and lines must not mix.
    one_at_a_time = RLock()

    def say(fields: Sequence[str]) -> None:
        nonlocal secret, number
        # A forked child has this descriptor too, and must not continue the report.
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
