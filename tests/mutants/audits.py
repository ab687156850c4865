"""Mistakes of the live audit and of replays: alarms without a fault, faults without an alarm."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SURPRISE = "paceline/engine/surprise.py"
_MARGIN = "paceline/engine/margin.py"
_AUDIT = "verify_service/audit.py"
_REPLAY = "gateway/replay.py"

_SUMS = ("tests/engine/test_surprise.py",)
_SERVED = "tests/verify_service/test_audit.py::"
_RIGHT = (_SERVED + "test_what_is_right_passes",)
_REPLAYS = "tests/gateway/test_replay.py::"

_WEALTH = "_SIGNED_RATES * surprise - expected.cumulants"
_EVIDENCE = "max(self._evidence, log_mean / _BOUND)"
_DRAFTED = "zip(verified.draft_laws, verified.token_ids, strict=False)"
_ROLE = "draws.uniform(base_length, 0, Role.AUDIT)"

MUTANTS = (
    Mutant(
        "a surprise without the entropy",
        _SURPRISE,
        "_LEAST_PROBABILITY)) - expected.entropy",
        "_LEAST_PROBABILITY))",
        _SUMS,
    ),
    Mutant("bets without a price", _SURPRISE, _WEALTH, "_SIGNED_RATES * surprise", _SUMS),
    Mutant(
        "bets on one side only",
        _SURPRISE,
        _WEALTH,
        "np.where(_SIGNED_RATES > 0.0, _SIGNED_RATES * surprise - expected.cumulants, 0.0)",
        _SUMS,
    ),
    Mutant("an alarm that passes", _SURPRISE, _EVIDENCE, "log_mean / _BOUND", _SUMS),
    Mutant("an impossible token let pass", _SURPRISE, "= 1e-300", "= 1.0", _SUMS),
    Mutant(
        "rejected draft tokens not audited",
        _AUDIT,
        _DRAFTED,
        "zip(verified.draft_laws, verified.token_ids[:num_accepted], strict=False)",
        _RIGHT,
    ),
    Mutant(
        "the added token not audited",
        _AUDIT,
        "(*verified.token_ids[:num_accepted], verified.outcome.next_token_id)",
        "tuple(verified.token_ids[:num_accepted])",
        _RIGHT,
    ),
    Mutant(
        "rounds chosen by what is drawn in them",
        _AUDIT,
        _ROLE,
        _ROLE.replace("AUDIT", "NEXT"),
        (_SERVED + "test_a_share_of_rounds",),
    ),
    Mutant(
        "noise that comes again taken for evidence",
        "verify_service/verifier.py",
        "if self._spec.has_fresh_seed:",
        "if self._spec.seed >= 0:",
        (_SERVED + "test_a_seed_that_comes_again_is_no_evidence",),
    ),
    Mutant(
        "a client's seed taken for a fresh one",
        "gateway/request.py",
        'has_fresh_seed=not request.HasField("seed")',
        "has_fresh_seed=True",
        ("tests/gateway/test_request.py::test_a_seed_and_its_rule",),
    ),
    Mutant(
        "a repeated round audited twice",
        "gateway/verifier_session.py",
        "self._spec.has_fresh_seed and self.replica is None",
        "self._spec.has_fresh_seed",
        ("tests/gateway/test_verifier_session.py::test_what_is_sent_again",),
    ),
    Mutant(
        "a replay audited",
        _REPLAY,
        "has_fresh_seed=False",
        "has_fresh_seed=spec.has_fresh_seed",
        (_REPLAYS + "test_what_a_replay_opens",),
    ),
    Mutant(
        "a replay from the cache that it judges",
        _REPLAY,
        'cache_domain=f"replay/{secrets.token_hex(8)}"',
        "cache_domain=spec.cache_domain",
        (_REPLAYS + "test_what_a_replay_opens",),
    ),
    Mutant(
        "near ties in exact mode",
        _REPLAY,
        "model.exact or difference.margin is None",
        "difference.margin is None",
        (_REPLAYS + "test_exact_mode_has_no_near_ties",),
    ),
    Mutant(
        "every difference a near tie",
        _REPLAY,
        "difference.margin <= self._config.replay_margin",
        "difference.margin >= 0.0",
        (_REPLAYS + "test_a_mismatch",),
    ),
    Mutant(
        "a race's lead not in logits",
        _MARGIN,
        "params.temperature * float(",
        "float(",
        ("tests/engine/test_margin.py",),
    ),
)
