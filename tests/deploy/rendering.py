"""The chart as Kubernetes would get it: rendered by either Helm with one of the profiles."""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.tools import find

CHART = Path(__file__).parent.parent.parent / "deploy" / "paceline"
PROFILES = ("", "cpu-demo", "gpu", "ha")
HELMS = ("helm", "helm3")
RELEASE = "shop"

Object = dict[str, Any]


class ChartError(Exception):
    """Helm refused the values or could not render."""


def profile_flags(profile: str) -> tuple[str, ...]:
    """The flags that choose a profile; none for the values as they are."""
    return ("-f", str(CHART / f"values-{profile}.yaml")) if profile else ()


def render(profile: str = "", *, helm: str = "helm", **values: Any) -> list[Object]:
    """The objects of a release; `values` are top-level keys laid over the profile.

    Raises:
        ChartError: with what Helm says.
    """
    return json.loads(_render(profile, helm, json.dumps(values)))  # type: ignore[no-any-return]  # a list


@functools.cache
def _render(profile: str, helm: str, values: str) -> str:
    command = (find(helm), "template", RELEASE, str(CHART), *profile_flags(profile), "-f", "-")
    done = subprocess.run(command, input=values, capture_output=True, text=True)
    if done.returncode:
        raise ChartError(done.stderr)
    return json.dumps([one for one in yaml.safe_load_all(done.stdout) if one])


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """The objects of a kind by their names."""
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def pods(objects: list[Object]) -> dict[str, Object]:
    """Every pod that the objects would lead to, by the name of what it comes from."""
    found = {name: one["spec"]["template"] for name, one in of_kind(objects, "Deployment").items()}
    return found | of_kind(objects, "Pod")


def container(pod: Object) -> Object:
    """The one container of a pod."""
    (one,) = pod["spec"]["containers"]
    return one  # type: ignore[no-any-return]  # parsed


def environment(pod: Object) -> dict[str, str]:
    """The plain variables of a pod's container."""
    return {one["name"]: one["value"] for one in container(pod).get("env", []) if "value" in one}


def selects(selector: dict[str, str], pod: Object) -> bool:
    """Whether a selector of labels fits a pod."""
    return bool(selector.items() <= pod["metadata"]["labels"].items())
