import io
import tarfile
from pathlib import Path

import assay
from assay.sandbox.docker import image
from assay.sandbox.docker.image import ImagePython

PACKAGE = Path(assay.__file__).parent
PYTHON = ImagePython(version="3.12", machine="x86_64", libc="glibc")


def names_in(context: io.BytesIO) -> dict[str, tarfile.TarInfo]:
    context.seek(0)
    with tarfile.open(fileobj=context) as archive:
        return {entry.name: entry for entry in archive.getmembers()}


def test_another_base_or_package_is_another_image() -> None:
    tag = image.packages_tag("sha256:a", ["numpy"])

    assert tag == image.packages_tag("sha256:a", ["numpy"])
    assert tag != image.packages_tag("sha256:b", ["numpy"])
    assert tag != image.packages_tag("sha256:a", ["numpy", "scipy"])


def test_another_service_is_another_image(tmp_path: Path) -> None:
    (tmp_path / "contracts").mkdir()
    source = tmp_path / "contracts" / "errors.py"
    source.write_text("one")
    before = image.service_tag("assay-python:packages-1", tmp_path)
    source.write_text("two")

    assert image.service_tag("assay-python:packages-1", tmp_path) != before


def test_the_service_has_what_it_imports_and_neither_settings_nor_commands() -> None:
    names = {name for name, _ in image.service_files(PACKAGE)}

    assert "service/assay/sandbox/docker/entrypoint.py" in names
    assert "service/assay/contracts/errors.py" in names
    parts = {name.split("/")[2] for name in names}
    assert parts == {"__init__.py", "asyncx", "contracts", "sandbox"}


def test_contexts_tell_nothing_of_the_machine_they_were_made_on(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    (layer / "bin").mkdir(parents=True)
    (layer / "numpy").mkdir()
    (layer / "numpy" / "__init__.py").write_text("")
    (layer / "bin" / "uv").write_text("")
    (layer / "bin" / "pytest").write_text("")
    (layer / "bin" / "pytest").chmod(0o755)
    packages, service = io.BytesIO(), io.BytesIO()

    image.write_context("FROM base\n", image.packages_files(layer), packages)
    image.write_context("FROM base\n", image.service_files(PACKAGE), service)

    first, second = names_in(packages), names_in(service)
    assert {"Dockerfile", "site/numpy/__init__.py", "bin/uv", "scripts/pytest"} <= first.keys()
    assert first["scripts/pytest"].mode == 0o755
    assert "service/assay/sandbox/docker/entrypoint.py" in second
    for entry in (*first.values(), *second.values()):
        assert (entry.mtime, entry.uid, entry.gid, entry.uname) == (0, 0, 0, "")


def test_the_dockerfiles_use_no_network_and_no_secret() -> None:
    for text in (
        image.packages_dockerfile("base", PYTHON),
        image.service_dockerfile("assay-python:packages-1"),
    ):
        assert not any(word in text for word in ("ARG", "pip install", "http", "apt-get", "ADD "))
    assert "python3.12/site-packages" in image.packages_dockerfile("base", PYTHON)
    assert "PYTHONPATH=/app" in image.service_dockerfile("x")


def test_a_platform_goes_by_the_name_that_the_resolver_knows() -> None:
    assert PYTHON.platform == "x86_64-unknown-linux-gnu"
    musl = ImagePython(version="3.12", machine="aarch64", libc="")
    assert musl.platform == "aarch64-unknown-linux-musl"
