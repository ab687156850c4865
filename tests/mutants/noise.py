"""Mistakes in the randomness of the rejection rules and in the noise of the coupled one."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_DRAWS = "paceline/engine/draws.py"
_COUPLING = "paceline/engine/coupling.py"
_LAW = "paceline/engine/law.py"
_REJECTION = "paceline/engine/rejection.py"
_DRAFTER = "draft_service/drafters/model.py"

_ONE_SEED = (
    "tests/law/test_public_cases.py::test_one_seed_on_both_tiers",
    "tests/law/test_noise_mutants.py",
)
_BOTH_TIERS = ("tests/verify_service/test_law.py::test_one_seed_on_both_tiers",)
_COUPLED = ("tests/law/test_noise_mutants.py", "tests/engine/test_coupling.py")
_COUPLED_DRAFT = ("tests/draft_service/test_coupled.py",)

_KEYED = "keyed.update(_KEY.pack(base_length, position, role))"
_NOISE_KEYED = "keyed.update(_KEY.pack(self._sample_index, position))"
_RACE = "(self.probabilities / noise).argmax()"
_UNIFORMS = "((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52"

MUTANTS = (
    Mutant(
        "the added token drawn with what decided the tests",
        _REJECTION,
        "draws.uniform(base_length, num_accepted, Role.NEXT)",
        "draws.uniform(base_length, min(num_accepted, max(k - 1, 0)), Role.ACCEPT)",
        _ONE_SEED,
    ),
    Mutant(
        "one stream for all roles",
        _DRAWS,
        _KEYED,
        _KEYED.replace("role", "Role.NEXT"),
        _ONE_SEED,
    ),
    Mutant(
        "draws keyed by the place in a proposal alone",
        _DRAWS,
        _KEYED,
        _KEYED.replace("base_length", "0"),
        _ONE_SEED,
    ),
    Mutant(
        "draws keyed by absolute position alone",
        _DRAWS,
        _KEYED,
        _KEYED.replace("base_length, position", "0, base_length + position"),
        _ONE_SEED,
    ),
    Mutant(
        "the draft draws with what tests its tokens",
        _DRAFTER,
        "Role.DRAFT))",
        "Role.ACCEPT))",
        _BOTH_TIERS,
    ),
    Mutant(
        "draft tokens keyed by absolute position alone",
        _DRAFTER,
        "        if self._rule is VerificationRule.COUPLED:\n            return self._noise",
        "        if self._rule in VerificationRule:\n            return self._noise",
        ("tests/verify_service/test_law.py::test_places_drafted_again_are_drafted_anew",),
    ),
    Mutant(
        "draws without a seed",
        _DRAWS,
        'key=struct.pack("<Q", seed)',
        'key=struct.pack("<Q", 0)',
        ("tests/engine/test_draws.py",),
    ),
    Mutant(
        "all samples of a request on one stream of draws",
        _DRAWS,
        'salt=struct.pack("<Q", sample_index)',
        'salt=struct.pack("<Q", 0)',
        ("tests/engine/test_draws.py",),
    ),
    Mutant(
        "the target's noise keyed by the round",
        _COUPLING,
        "noise.draw(target_laws[i], base_length + i)",
        "noise.draw(target_laws[i], base_length)",
        _COUPLED,
    ),
    Mutant(
        "the bonus token's noise keyed by the round",
        _COUPLING,
        "noise.draw(target_laws[k], base_length + k)",
        "noise.draw(target_laws[k], base_length)",
        _COUPLED,
    ),
    Mutant(
        "the target's noise keyed by the place in a proposal",
        _COUPLING,
        "noise.draw(target_laws[i], base_length + i)",
        "noise.draw(target_laws[i], i)",
        _COUPLED,
    ),
    Mutant(
        "the draft's noise keyed by the round",
        _DRAFTER,
        "self._noise.draw(law.as_law(), base_length + position)",
        "self._noise.draw(law.as_law(), base_length)",
        _COUPLED_DRAFT,
    ),
    Mutant(
        "noise that the two tiers do not share",
        _DRAFTER,
        "self._noise = Noise(spec.seed, spec.sample_index)",
        "self._noise = Noise(spec.seed ^ 1, spec.sample_index)",
        _COUPLED_DRAFT,
    ),
    Mutant(
        "noise without a position",
        _COUPLING,
        _NOISE_KEYED,
        _NOISE_KEYED.replace("position", "0"),
        _COUPLED,
    ),
    Mutant(
        "all samples of a request on one noise",
        _COUPLING,
        _NOISE_KEYED,
        _NOISE_KEYED.replace("self._sample_index", "0"),
        ("tests/verify_service/test_coupled.py::test_seeds_and_samples_differ",),
    ),
    Mutant(
        "noise by place in the support",
        _COUPLING,
        "token_ids.astype(np.int64)",
        "np.arange(len(token_ids))",
        _COUPLED,
    ),
    Mutant(
        "a race without some who could win it",
        _COUPLING,
        "_ROUNDING = 1.0 + 1e-6",
        "_ROUNDING = 0.97",
        ("tests/engine/test_coupling.py",),
    ),
    Mutant(
        "noise of 24 bits",
        _COUPLING,
        _UNIFORMS,
        _UNIFORMS.replace("12", "40").replace("52", "24"),
        ("tests/engine/test_coupling.py::test_exponentials_at_the_ends",),
    ),
    Mutant(
        "the race upside down",
        _LAW,
        _RACE,
        "(self.probabilities * noise).argmax()",
        _COUPLED,
    ),
    Mutant(
        "ties of a race to the highest id",
        _LAW,
        _RACE,
        "-1 - (self.probabilities / noise)[::-1].argmax()",
        ("tests/engine/test_law.py",),
    ),
    Mutant(
        "the coupled rule emits the draft's token",
        _COUPLING,
        "return Outcome(i, drawn, VerdictKind.RECOVERED)",
        "return Outcome(i, token_id, VerdictKind.RECOVERED)",
        _COUPLED,
    ),
    Mutant(
        "a draw may land on probability 0",
        _LAW,
        'cumulative.searchsorted(uniform * cumulative[-1], side="right")',
        'cumulative.searchsorted(uniform * cumulative[-1], side="left")',
        ("tests/engine/test_law.py",),
    ),
)
