"""Replicas: found, described, watched, and picked by load."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gateway import replicas as replicas_module
from gateway.replicas import Replicas
from gateway.tiers import Sources, draft_tier
from paceline.records import DraftSource
from paceline.serving.credentials import TlsFiles, client_credentials

if TYPE_CHECKING:
    from tests.gateway.conftest import DraftTier, Servers

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]
SCRIPT = list(range(40, 90))
PLAINTEXT = client_credentials(TlsFiles(""))


def anything(description: Any) -> bool:
    """Every replica fits."""
    return True


def picked(replicas: Replicas[Any], **limits: Any) -> str:
    """The address that is picked, or an empty one."""
    replica = replicas.pick(anything, **limits)
    return replica.address if replica else ""


async def test_what_a_replica_says_of_itself(servers: Servers) -> None:
    """A target is known with limits, rules and a tokenizer that works, once it is ready."""
    tier = await servers.verify(SCRIPT, max_draft_tokens=5)
    ((_, target),) = (await servers.tiers([tier])).targets.ready()
    assert (servers.model, 5) == (target.model, target.max_draft_tokens)
    assert set(tier.rules) == target.rules
    assert "hi" == target.tokenizer.decode(target.tokenizer.encode("hi"))


async def test_the_tokenizer_is_fetched_once_for_a_pool(servers: Servers) -> None:
    """Replicas of one fingerprint share one archive."""
    verify = [await servers.verify(SCRIPT) for _ in range(3)]
    await servers.tiers(verify)
    assert 1 == sum(tier.num_tokenizers_sent for tier in verify)


async def test_the_least_loaded_is_picked(servers: Servers, eventually: Eventually) -> None:
    """Reports decide, and sessions opened since the last report count with them."""
    a, b = await servers.draft(SCRIPT), await servers.draft(SCRIPT)
    sources = (await servers.tiers([], [a, b])).sources
    a.set_load(num_open_sessions=5)
    b.set_load(num_open_sessions=3)
    await eventually(lambda: {5, 3} == {r.num_sessions for r in sources.all()})
    chosen = []
    for _ in range(4):
        replica = sources.pick(anything)
        assert replica is not None
        replica.count_session()
        chosen.append(replica.address)
    assert [b.address, b.address] == chosen[:2]
    assert {a.address, b.address} == set(chosen[2:])


async def test_new_sessions_spread(servers: Servers) -> None:
    """B102: 300 sessions over three equal replicas between two reports: a third each."""
    tiers = [await servers.draft(SCRIPT) for _ in range(3)]
    sources = (await servers.tiers([], tiers)).sources
    counts: Counter[str] = Counter()
    for _ in range(300):
        replica = sources.pick(anything)
        assert replica is not None
        replica.count_session()
        counts[replica.address] += 1
    assert [100, 100, 100] == list(counts.values())


async def test_a_draining_replica_gets_no_new_sessions(
    servers: Servers, eventually: Eventually
) -> None:
    """What says that it drains is not picked, and is again when it stops saying so."""
    a, b = await servers.draft(SCRIPT), await servers.draft(SCRIPT)
    sources = (await servers.tiers([], [a, b])).sources
    a.set_load(is_draining=True)
    await eventually(lambda: len(sources.ready()) == 1)
    assert {b.address} == {picked(sources) for _ in range(10)}
    b.set_load(is_draining=True)
    await eventually(lambda: not sources.ready())
    assert "" == picked(sources)
    a.set_load(is_draining=False)
    await eventually(lambda: a.address == picked(sources))


async def test_excluded_and_avoided(servers: Servers) -> None:
    """An avoided replica is the last resort, an excluded one is none."""
    a, b = await servers.draft(SCRIPT), await servers.draft(SCRIPT)
    sources = (await servers.tiers([], [a, b])).sources
    assert {b.address} == {picked(sources, avoided=[a.address]) for _ in range(10)}
    assert {a.address} == {
        picked(sources, avoided=[a.address], excluded=[b.address]) for _ in range(10)
    }
    assert "" == picked(sources, excluded=[a.address, b.address])


async def zoned(servers: Servers, own: str, *zones: str) -> tuple[Replicas[Any], list[DraftTier]]:
    """A gateway's view, in its zone, of drafts in theirs."""
    tiers = [await servers.draft(SCRIPT, zone=zone) for zone in zones]
    replicas = await servers.watch(
        Replicas(
            [tier.address for tier in tiers],
            draft_tier(),
            resolve_period_s=60,
            tls=PLAINTEXT,
            zone=own,
        )
    )
    return replicas, tiers


async def test_the_own_zone_goes_first(servers: Servers, eventually: Eventually) -> None:
    """Until a replica elsewhere stays behind with twice its sessions and four more."""
    replicas, (home, far) = await zoned(servers, "west", "west", "east")
    assert {"west", "east"} == {replica.zone for replica in replicas.all()}
    for at_home, elsewhere, expected in ((3, 0, home), (5, 0, far), (23, 10, home), (25, 10, far)):
        home.set_load(num_open_sessions=at_home)
        far.set_load(num_open_sessions=elsewhere)
        loads = {home.address: at_home, far.address: elsewhere}
        await eventually(lambda: all(r.num_sessions == loads[r.address] for r in replicas.all()))  # noqa: B023 - awaited here
        assert {expected.address} == {picked(replicas) for _ in range(10)}


async def test_another_zone_where_the_own_has_none(servers: Servers) -> None:
    """Not ready, left out, or not there at all: answers matter more than ways."""
    replicas, (home, far) = await zoned(servers, "west", "west", "east")
    assert far.address == picked(replicas, excluded=[home.address])
    assert far.address == picked(replicas, avoided=[home.address])
    elsewhere, tiers = await zoned(servers, "north", "west", "")
    assert {tier.address for tier in tiers} == {picked(elsewhere) for _ in range(60)}


async def test_without_a_zone_all_are_near(servers: Servers) -> None:
    """A gateway that was not told its zone picks by load alone."""
    replicas, tiers = await zoned(servers, "", "west", "")
    assert {tier.address for tier in tiers} == {picked(replicas) for _ in range(60)}


async def test_only_what_fits_is_picked(servers: Servers) -> None:
    """The caller says what fits, from what the replica said of itself."""
    a = await servers.draft(SCRIPT, sources=(DraftSource("a"),))
    b = await servers.draft(SCRIPT, sources=(DraftSource("b"),))
    sources = (await servers.tiers([], [a, b])).sources

    def is_b(description: Sources) -> bool:
        return description.sources[0].name == "b"

    assert {b.address} == {r.address for _ in range(10) if (r := sources.pick(is_b))}


async def test_a_dead_replica_is_noticed_and_found_again(
    servers: Servers, eventually: Eventually
) -> None:
    """Killed: not ready at once. Started again: ready, with what it serves now."""
    tier = await servers.draft(SCRIPT)
    sources = (await servers.tiers([], [tier])).sources
    await tier.stop()
    await eventually(lambda: not sources.ready())
    tier.sources = (DraftSource("new"),)
    await tier.serve(tier.address)
    await eventually(lambda: bool(sources.ready()))
    ((_, description),) = sources.ready()
    assert "new" == description.sources[0].name


async def test_an_address_that_nobody_serves(servers: Servers) -> None:
    """A dead address holds nobody up: it was tried, and is not ready."""
    replicas = Replicas(["127.0.0.1:1"], draft_tier(), resolve_period_s=60, tls=PLAINTEXT)
    servers.watching.append(replicas)
    await replicas.start()
    await replicas.wait_tried()
    assert ([], 1) == (replicas.ready(), len(replicas.all()))


async def test_names_are_followed(
    servers: Servers, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B103: every address of a name is a replica; new ones are used, vanished ones are not."""
    a, b = await servers.draft(SCRIPT), await servers.draft(SCRIPT)
    known = {"drafts:1": [a.address]}

    async def addresses(target: str) -> list[str]:
        if target not in known:
            raise OSError("no such name")
        return known[target]

    monkeypatch.setattr(replicas_module, "_addresses", addresses)
    replicas = Replicas(["drafts:1"], draft_tier(), resolve_period_s=0.01, tls=PLAINTEXT)
    servers.watching.append(replicas)
    await replicas.start()
    await eventually(lambda: picked(replicas) == a.address)
    known["drafts:1"] = [a.address, b.address]
    await eventually(lambda: len(replicas.ready()) == 2)
    known["drafts:1"] = [b.address]
    await eventually(lambda: len(replicas.all()) == 1)
    assert {b.address} == {picked(replicas) for _ in range(10)}
    known.clear()
    await replicas._resolve()
    assert b.address == picked(replicas)


async def test_a_name_without_addresses_is_an_empty_tier(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scaled to nothing: no replica stays. A name service that is away empties nothing."""
    a = await servers.draft(SCRIPT)
    answers_by_host: dict[str, int | str] = {"a": a.address, "b": socket.EAI_AGAIN}

    async def getaddrinfo(host: str, port: int, **options: Any) -> list[Any]:
        answer = answers_by_host[host]
        if isinstance(answer, int):
            raise socket.gaierror(answer, "no")
        host, _, own_port = answer.rpartition(":")
        return [(socket.AF_INET, 0, 0, "", (host, own_port))]

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    port = a.address.rpartition(":")[2]
    replicas = Replicas(
        [f"a:{port}", f"b:{port}"], draft_tier(), resolve_period_s=60, tls=PLAINTEXT
    )
    servers.watching.append(replicas)
    await replicas.start()
    await replicas.wait_tried()
    assert a.address == picked(replicas)  # although b could not be looked up
    answers_by_host["a"] = socket.EAI_AGAIN
    await replicas._resolve()
    assert a.address == picked(replicas)
    for gone in (socket.EAI_NONAME, socket.EAI_NODATA):
        answers_by_host["a"] = a.address
        await replicas._resolve()
        assert 1 == len(replicas.all())
        answers_by_host["a"] = gone
        await replicas._resolve()
        assert [] == replicas.all()


@pytest.mark.parametrize(
    ("target", "address"),
    [("127.0.0.1:80", "127.0.0.1:80"), ("[::1]:80", "[::1]:80"), ("localhost:7", "127.0.0.1:7")],
)
async def test_addresses_are_taken_as_they_are(target: str, address: str) -> None:
    """Literals stay what they are, and a name gives IPv4 where it has any."""
    assert [address] == await replicas_module._addresses(target)


async def test_pools_are_told_apart(servers: Servers) -> None:
    """A changed model is another pool: its fingerprint is what a session asks for."""
    a, b = await servers.verify(SCRIPT), await servers.verify(SCRIPT)
    b.identity = replace(servers.model, fingerprint="scripted-2")
    targets = (await servers.tiers([a, b])).targets
    for tier, fingerprint in ((a, "scripted-1"), (b, "scripted-2")):
        replica = targets.pick(lambda t, f=fingerprint: t.model.fingerprint == f)  # type: ignore[misc]  # bound at once
        assert replica is not None
        assert tier.address == replica.address
