"""Which target serves a request, and which draft source fits it.

Ids must mean the same on both sides, else a proposal would be verified as other text than was
drafted. It opens no streams.
"""

from __future__ import annotations

from gateway.replicas import Replicas
from gateway.tiers import Sources, Target
from paceline.errors import NotFound, Unavailable
from paceline.pairing import check_pair, fits
from paceline.records import DraftSource, ModelIdentity, VerificationRule

NO_DRAFT = "none"


def choose_target(replicas: Replicas[Target], model: str) -> Target:
    """The target that a request names; without a name the first.

    Raises:
        NotFound: no replica serves the name.
        Unavailable: no replica is ready.
    """
    ready = [target for _, target in replicas.ready()]
    for target in ready:
        if model in ("", target.model.name):
            return target
    known = {replica.description.model.name for replica in replicas.all() if replica.description}
    if ready and model not in known:
        raise NotFound(f"model {model!r} is not served here; served are {sorted(known)}")
    raise Unavailable("no target is ready", reason="NO_TARGET")


def check_source(
    replicas: Replicas[Sources], name: str, target: ModelIdentity, rule: VerificationRule
) -> None:
    """Makes sure that the draft source of a request can be had, now or when a replica comes.

    Raises:
        NotFound: no replica serves the name.
        FailedPrecondition: the source is served, and not for this target; both are printed.
    """
    if name == NO_DRAFT or not replicas.targets:
        if name not in ("", NO_DRAFT):
            raise NotFound(f"draft source {name!r}: there is no draft tier", reason=_NOT_FOUND)
        return
    ready = [sources for _, sources in replicas.ready()]
    named = [source for sources in ready if (source := find_source(sources, name)) is not None]
    if not ready or any(fits(source.model, target, rule) for source in named):
        return  # without a ready replica the generation starts plain, and gets a draft later
    if not named:
        known = sorted({source.name for sources in ready for source in sources.sources})
        raise NotFound(
            f"draft source {name!r} is not served here; served are {known}", reason=_NOT_FOUND
        )
    check_pair(named[0].model, target, rule)


def find_source(sources: Sources, name: str) -> DraftSource | None:
    """The source of that name; without a name the default."""
    for source in sources.sources:
        if name in ("", source.name):
            return source
    return None


_NOT_FOUND = "DRAFT_SOURCE_NOT_FOUND"
