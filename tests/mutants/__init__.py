"""Known mistakes, made on purpose: the tests are worth something only where they see every one."""

from tests.mutants import (
    access,
    audits,
    cache,
    constraints,
    distilled,
    drafts,
    gateways,
    graphs,
    lengths,
    native,
    noise,
    parameters,
    rules,
    watches,
)
from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *rules.MUTANTS,
    *noise.MUTANTS,
    *parameters.MUTANTS,
    *constraints.MUTANTS,
    *drafts.MUTANTS,
    *distilled.MUTANTS,
    *cache.MUTANTS,
    *gateways.MUTANTS,
    *audits.MUTANTS,
    *watches.MUTANTS,
    *lengths.MUTANTS,
    *native.MUTANTS,
    *graphs.MUTANTS,
    *access.MUTANTS,
)
