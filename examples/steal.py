import pathlib
import socket

for secret in ("/etc/shadow", "/root/.ssh/id_ed25519", "/proc/1/environ"):
    try:
        print(secret, "->", pathlib.Path(secret).read_bytes()[:20])
    except OSError as error:
        print(secret, "->", error.strerror)
try:
    socket.create_connection(("127.0.0.1", 22), timeout=1)
except OSError as error:
    print("the network ->", error.strerror)
