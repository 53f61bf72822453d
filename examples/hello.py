"""Show where this program runs. Try `assay sandbox run examples/hello.py`."""

import os
import platform
import socket
from pathlib import Path

print(f"hello from {socket.gethostname()}, process {os.getpid()}, user {os.getuid()}")
print(f"python {platform.python_version()}, working in {Path.cwd()}")
print("files here:", sorted(path.name for path in Path().iterdir()) or "none")
try:
    Path("/etc/shadow").read_text()
except OSError as error:
    print("the host's secrets:", error.strerror.lower())
try:
    socket.create_connection(("127.0.0.1", 80), timeout=1)
except OSError as error:
    print("the network:", error.strerror.lower())
