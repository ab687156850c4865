"""The Secrets of pods that are processes: a folder per Secret, in which a file is a key."""

from __future__ import annotations

from pathlib import Path

from tests.deploy.rendering import Object, container


def mounts(spec: Object, secrets: Path) -> str:
    """The commands that put a pod's Secrets where its container mounts them."""
    commands = ["mount -t tmpfs none /run"]
    places = {m["name"]: m["mountPath"] for m in container(spec).get("volumeMounts", [])}
    for volume in spec["spec"].get("volumes", []):
        if secret := volume.get("secret"):
            folder, place = secrets / secret["secretName"], places[volume["name"]]
            keys = [{"key": path.name, "path": path.name} for path in folder.iterdir()]
            commands.append(f"mkdir -p {place}")
            for item in secret.get("items", keys):
                commands.append(f"cp {folder / item['key']} {place}/{item['path']}")
    return "\n".join(commands)


def look_up(source: Object, spec: Object, secrets: Path) -> str:
    """The value of a variable: a limit, a label of the pod, or a key of a Secret."""
    match source:
        case {"resourceFieldRef": {"resource": resource}}:
            return str(container(spec)["resources"]["limits"][resource.removeprefix("limits.")])
        case {"fieldRef": {"fieldPath": path}}:
            label = path.removeprefix("metadata.labels['").removesuffix("']")
            return str(spec["metadata"]["labels"].get(label, ""))
        case {"secretKeyRef": {"name": name, "key": key}}:
            return Path(secrets, name, key).read_text()
    raise AssertionError(source)
