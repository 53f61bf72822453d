"""`assay sandbox packages`: lists and removes packages that sandboxes fetched."""

import json
import time
from typing import TYPE_CHECKING

import click

from assay.cli.confirm import YES, confirm

if TYPE_CHECKING:
    from assay.sandbox.packages.store import PackageStore


@click.group(name="packages")
def command() -> None:
    """List or remove the packages that were fetched for sandboxes."""


@command.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def list_layers(as_json: bool) -> None:  # noqa: FBT001 - click's
    """List all package layers, the most recently used first."""
    layers = _store().layers()
    if as_json:
        now = time.time()
        rows = [
            {
                "layer": layer.key,
                "packages": list(layer.pins),
                "python": layer.python,
                "size_bytes": layer.size_bytes,
                "unused_s": round(now - layer.used_at, 1),
            }
            for layer in layers
        ]
        click.echo(json.dumps(rows))
        return
    if not layers:
        click.echo("no packages were fetched")
    for layer in layers:
        size = f"{layer.size_bytes / 1e6:.1f} MB"
        click.echo(f"{layer.key[:12]}  {size:>9}  Python {layer.python}  {' '.join(layer.pins)}")


@command.command()
@YES
def clean(*, yes: bool) -> None:
    """Remove all layers that no sandbox uses; Assay fetches them again when needed."""
    confirm("Remove all fetched packages that no sandbox is using?", yes=yes)
    removed = _store().clean()
    freed = sum(layer.size_bytes for layer in removed)
    click.echo(f"removed {len(removed)} layers, {freed / 1e6:.1f} MB")


def _store() -> "PackageStore":
    from assay.sandbox.factory import build_package_store
    from assay.settings.load import load_settings

    return build_package_store(load_settings().sandbox)
