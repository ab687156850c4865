"""NetworkPolicies as rules of iptables, set in the network namespace of each pod.

A cluster leaves this to its network plug-in. What is emulated: peers that are chosen by labels
within the namespace, ports by number or by name, and that the machine itself, where probes and the
name service live, is always let in. What is refused is reset at once, and not dropped.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.deploy.rendering import Object, container, of_kind, selects

IS_THERE = shutil.which("iptables-restore") is not None


@dataclass(frozen=True)
class Member:
    """A pod that has a place in the network."""

    spec: Object
    space: str
    address: str


def enforce(objects: list[Object], members: Sequence[Member], node: str) -> None:
    """Lets every pod hear and ask those that the policies name, and nobody else."""
    policies = list(of_kind(objects, "NetworkPolicy").values())
    for one in members:
        held = [p["spec"] for p in policies if selects(_labels(p["spec"]["podSelector"]), one.spec)]
        lines = ["*filter", *_chain("INPUT", held, one, members, node)]
        lines += [*_chain("OUTPUT", held, one, members, node), "COMMIT", ""]
        command = ("ip", "netns", "exec", one.space, "iptables-restore")
        subprocess.run(command, input="\n".join(lines), text=True, check=True)


def _chain(
    chain: str, policies: list[Object], one: Member, members: Sequence[Member], node: str
) -> Iterator[str]:
    """The rules of one direction; a pod that no policy holds is open."""
    yield f":{chain} ACCEPT [0:0]"
    if not policies:
        return
    way, key, own, flag = (
        ("ingress", "from", "-i", "-s") if chain == "INPUT" else ("egress", "to", "-o", "-d")
    )
    yield f"-A {chain} {own} lo -j ACCEPT"
    yield f"-A {chain} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"
    if chain == "INPUT":
        yield f"-A {chain} {flag} {node} -j ACCEPT"
    for rule in (rule for policy in policies for rule in policy[way]):
        peers = [f" {flag} {other.address}" for other in members if _is_peer(rule.get(key), other)]
        for port in rule["ports"]:
            named = f"-p {port.get('protocol', 'TCP').lower()} --dport {_number(port['port'], one)}"
            for peer in peers if key in rule else [""]:
                yield f"-A {chain}{peer} {named} -j ACCEPT"
    yield f"-A {chain} -p tcp -j REJECT --reject-with tcp-reset"
    yield f"-A {chain} -j REJECT"


def _labels(selector: Object) -> dict[str, str]:
    return selector.get("matchLabels", {})  # type: ignore[no-any-return]  # parsed


def _is_peer(peers: list[Object] | None, other: Member) -> bool:
    return any(
        "podSelector" in peer and selects(_labels(peer["podSelector"]), other.spec)
        for peer in peers or ()
    )


def _number(port: int | str, one: Member) -> int:
    """The number of a port, which a rule of ingress may name."""
    if isinstance(port, int):
        return port
    named = {entry["name"]: entry["containerPort"] for entry in container(one.spec)["ports"]}
    return int(named[port])
