"""Weights on a disk that has no room for them: said clearly, and nothing half is ever used."""

import hashlib
import json
import os
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.support.file_server import serve_file
from tests.support.requirements import require

CONTENT = bytes(range(256)) * (3 << 12)
"""Three times what the disk holds."""

SCRIPT = """
import anyio, json, sys
from pathlib import Path
from assay.contracts.errors import ModelUnavailableError
from assay.models.local.download import WeightsStore
from assay.models.local.weights import FileSource, Sampling, Weights

url, folder, size, digest = sys.argv[1:]
weights = Weights(name="w", title="Large", licence="MIT", file_name="w.gguf", size_bytes=int(size),
                  sha256=digest, context_tokens=9, sampling=Sampling(),
                  source=(FileSource(url=url),))
# There was room when it began; something else took it.
store = WeightsStore(folder=Path(folder), free_bytes=lambda _: 10**12)

async def main():
    try:
        await store.pull(weights)
    except ModelUnavailableError as error:
        files = {path.name: path.stat().st_size for path in store.folder.iterdir()}
        found = await store.find(weights)
        print(json.dumps([str(error), error.hint, files, found]))

anyio.run(main)
"""


def test_a_disk_that_fills_up_in_the_middle_is_named(tmp_path: Path) -> None:
    require("root", available=os.geteuid() == 0, why="only root mounts a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    with serve_file(CONTENT) as server:
        words = [
            *(sys.executable, "-c", textwrap.dedent(SCRIPT)),
            *(server.url, str(disk), str(len(CONTENT)), hashlib.sha256(CONTENT).hexdigest()),
        ]
        mounted = f"mount -t tmpfs -o size=1m small {shlex.quote(str(disk))}"
        command = f"{mounted} && exec {shlex.join(words)}"
        # The mount is seen, and lives, only inside.
        ran = subprocess.run(
            ["/usr/bin/env", "unshare", "--mount", "sh", "-c", command],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )

    told, hint, files, found = json.loads(ran.stdout)
    assert f"no space is left in {str(disk)!r}" in told
    assert "models.cache_dir" in hint
    assert found is None
    assert "w.gguf" not in files
    assert 0 < files[".w.gguf.partial"] <= 1 << 20
