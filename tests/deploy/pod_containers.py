"""Starts the containers of pods from images, with runc and without an engine.

The file system of an image is mounted once, and each pod has it read-only, with the user, the
rights, the variables and the volumes of its spec. Cgroups, seccomp and limits are left out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.deploy.mini_kubelet import CACHE, variables
from tests.deploy.rendering import Object, container
from tests.deploy.tools import IMAGES


@dataclass(frozen=True)
class Image:
    """An image whose file system is mounted."""

    root: Path
    config: Object

    def account(self, user: int) -> tuple[int, str]:
        """Group and home of a user, as a container runtime reads them."""
        rows = (line.split(":") for line in (self.root / "etc/passwd").read_text().splitlines())
        return next((int(row[3]), row[5]) for row in rows if row[2] == str(user))


@contextmanager
def mounted(target: str) -> Iterator[Image]:
    """The image of a target of the Dockerfile."""
    name = f"localhost/paceline/{target}:built"
    config = json.loads(_buildah("inspect", "--type=image", name))["OCIv1"]["config"]
    working = _buildah("from", "--pull-never", name)
    try:
        yield Image(Path(_buildah("mount", working)), config)
    finally:
        _buildah("rm", working)


def _buildah(*arguments: str) -> str:
    store = ("--root", str(IMAGES / "storage"), "--runroot", str(IMAGES / "run"))
    return subprocess.check_output(("buildah", *store, *arguments), text=True).strip()


class Containers:
    """Starts containers of images; files are copied into the cache."""

    def __init__(self, images: Mapping[str, Image], files: Sequence[Path], folder: Path) -> None:
        self._images, self._files, self._folder = images, files, folder

    def __call__(self, spec: Object, space: str, log: IO[str]) -> subprocess.Popen[bytes]:
        """Starts a container; runc hands signals on to it."""
        own = self._folder / space
        own.mkdir()
        subprocess.run(("runc", "spec", "--bundle", own), check=True)
        base = json.loads((own / "config.json").read_text())
        (own / "config.json").write_text(json.dumps(base | self._config(base, spec, space, own)))
        command = ("runc", "--root", self._folder / "runc", "run", "--bundle", own, space)
        return subprocess.Popen(command, stdout=log, stderr=log)

    def _config(self, base: Object, spec: Object, space: str, own: Path) -> Object:
        """What image and pod say, as runc is told it."""
        one = container(spec)
        image = self._images[one["image"].partition(":")[0]]
        rights, user = one["securityContext"], spec["spec"]["securityContext"]
        assert ["ALL"] == rights["capabilities"]["drop"]
        group, home = image.account(user["runAsUser"])
        said = {"HOME": home} | variables(spec, self._folder)
        process = {
            "args": [*one["command"], *one.get("args", [])],
            "env": [*image.config["Env"], *(f"{name}={text}" for name, text in said.items())],
            "cwd": image.config["WorkingDir"],
            "user": {"uid": user["runAsUser"], "gid": group},
            "capabilities": {},
            "noNewPrivileges": not rights["allowPrivilegeEscalation"],
        }
        mounts = [mount for mount in base["mounts"] if mount["type"] != "cgroup"]
        mounts.append(_bind(Path("/etc/netns", space, "resolv.conf"), "/etc/resolv.conf", "ro"))
        for volume in one.get("volumeMounts", []):
            place = own / volume["name"]
            self._fill(place, volume["mountPath"], user["fsGroup"])
            mounts.append(_bind(place, volume["mountPath"], "rw"))
        spaces = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
        spaces.append({"type": "network", "path": f"/run/netns/{space}"})
        root = {"path": str(image.root), "readonly": rights["readOnlyRootFilesystem"]}
        linux = {"namespaces": spaces, "maskedPaths": base["linux"]["maskedPaths"]}
        return {"process": process, "root": root, "mounts": mounts, "linux": linux}

    def _fill(self, place: Path, mount_path: str, group: int) -> None:
        """An empty volume, which the pod's group may write to."""
        place.mkdir()
        for file in self._files if mount_path == CACHE else ():
            shutil.copy(file, place)
        os.chown(place, 0, group)
        place.chmod(0o2775)


def _bind(source: Path, destination: str, mode: str) -> Object:
    options = ["rbind", mode, "nosuid", "nodev"]
    return {"destination": destination, "type": "bind", "source": str(source), "options": options}
