"""Starts the containers of pods from images, with umoci and runc and without an engine.

The root file system of an image is unpacked once, and each pod has it read-only, with the user,
the rights, the variables and the volumes of its spec. Cgroups, seccomp and limits are left out.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.deploy.mini_kubelet import CACHE, variables
from tests.deploy.rendering import Object, container


def unpack(image: Path, bundle: Path) -> Path:
    """Makes a bundle for runc of an OCI layout."""
    command = ("umoci", "unpack", "--image", f"{image}:built", str(bundle))
    subprocess.run(command, check=True, capture_output=True)
    return bundle


class Containers:
    """Starts containers of unpacked images; files are copied into the cache."""

    def __init__(self, bundles: Mapping[str, Path], files: Sequence[Path], folder: Path) -> None:
        self._bundles, self._files, self._folder = bundles, files, folder
        self._numbers = itertools.count()

    def __call__(self, spec: Object, space: str, log: IO[str]) -> subprocess.Popen[bytes]:
        """Starts a container; runc hands signals on to it."""
        own = self._folder / f"{space}-{next(self._numbers)}"
        own.mkdir()
        image, _, _ = container(spec)["image"].partition(":")
        config = self._config(self._bundles[image], spec, space, own)
        (own / "config.json").write_text(json.dumps(config))
        command = ("runc", "--root", str(self._folder / "runc"), "run", "--bundle", str(own))
        return subprocess.Popen((*command, own.name), stdout=log, stderr=log)

    def _config(self, bundle: Path, spec: Object, space: str, own: Path) -> Object:
        """The image's configuration with what the pod's spec says over it."""
        config: Object = json.loads((bundle / "config.json").read_text())
        one, process = container(spec), config["process"]
        rights, user = one["securityContext"], spec["spec"]["securityContext"]
        assert ["ALL"] == rights["capabilities"]["drop"]
        process |= {
            "terminal": False,
            "args": [*one["command"], *one.get("args", [])],
            "env": process["env"] + [f"{name}={text}" for name, text in variables(one).items()],
            "user": {"uid": user["runAsUser"], "gid": process["user"]["gid"]},
            "capabilities": {},
            "noNewPrivileges": not rights["allowPrivilegeEscalation"],
        }
        root = {"path": str(bundle / "rootfs"), "readonly": rights["readOnlyRootFilesystem"]}
        mounts = [mount for mount in config["mounts"] if mount["type"] != "cgroup"]
        mounts += [_bind(Path("/etc/netns", space, "resolv.conf"), "/etc/resolv.conf", "ro")]
        for volume in one.get("volumeMounts", []):
            place = own / volume["name"]
            self._fill(place, volume["mountPath"], user["fsGroup"])
            mounts.append(_bind(place, volume["mountPath"], "rw"))
        spaces = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
        spaces.append({"type": "network", "path": f"/run/netns/{space}"})
        linux = {"namespaces": spaces, "maskedPaths": config["linux"].get("maskedPaths", [])}
        return config | {"process": process, "root": root, "mounts": mounts, "linux": linux}

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
