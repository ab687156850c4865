"""Mistakes in the two rejection rules and in what they leave of a law."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_REJECTION = "paceline/engine/rejection.py"
_RESIDUAL = "paceline/engine/residual.py"
_EXACT = ("tests/law/test_exactness.py",)

_RATIO = "target_laws[i].probability(token_id) / draft.probability(token_id)"
_MASS = "residual_mass(target_laws[i], draft_laws[i], scales[i])"
_LEFT = "Law(target.token_ids, rest / mass) if mass > 0.0 else target"
_OUTSIDE = "return scale * outside + float("
_PASSED = "passed = [u < h for u, h in zip(uniforms, probabilities, strict=True)]"
_IS_TOKEN = "    if rule is VerificationRule.REJECTION_TOKEN:\n"

MUTANTS = (
    Mutant(
        "the ratio upside down",
        _REJECTION,
        _RATIO,
        "draft.probability(token_id) / max(target_laws[i].probability(token_id), 1e-9)",
        _EXACT,
    ),
    Mutant("an epsilon in the ratio", _REJECTION, _RATIO, f"({_RATIO[:-1]}) + 1e-9)", _EXACT),
    Mutant(
        "draft tokens tested against the row behind their own",
        _REJECTION,
        _RATIO,
        _RATIO.replace("[i]", "[i + 1]"),
        _EXACT,
    ),
    Mutant(
        "a draft token with a chance of 0 stands where the draw is 0",
        _REJECTION,
        _PASSED,
        _PASSED.replace("<", "<="),
        ("tests/engine/test_rejection.py",),
    ),
    Mutant(
        "the first draft token never verified",
        _REJECTION,
        _PASSED,
        f"{_PASSED}\n    passed[:1] = [True] * len(passed[:1])",
        _EXACT,
    ),
    Mutant(
        "the block rule stops at its first failure",
        _REJECTION,
        _IS_TOKEN,
        "    if rule in VerificationRule:\n",
        _EXACT,
    ),
    Mutant(
        "the token rule takes the last pass",
        _REJECTION,
        _IS_TOKEN,
        "    if rule is VerificationRule.COUPLED:\n",
        _EXACT,
    ),
    Mutant(
        "rows behind an impossible token are read",
        _REJECTION,
        "            break\n",
        "            continue\n",
        _EXACT,
    ),
    Mutant("no scale in Z", _REJECTION, _MASS, _MASS.replace("scales[i]", "1.0"), _EXACT),
    Mutant(
        "Z from the laws in front of the token",
        _REJECTION,
        _MASS,
        _MASS.replace("[i],", "[i - 1],"),
        _EXACT,
    ),
    Mutant(
        "the scale of the block rule not capped",
        _REJECTION,
        "min(1.0, a * ratio)",
        "a * ratio",
        _EXACT,
    ),
    Mutant(
        "the last test of a block always passes",
        _REJECTION,
        "probabilities = scales[1:]",
        "probabilities = [*scales[1:-1], 1.0][: len(ratios)]",
        _EXACT,
    ),
    Mutant(
        "no scale in the recovered token's law",
        _REJECTION,
        "draft_laws[i], tests.scales[i])",
        "draft_laws[i], 1.0)",
        _EXACT,
    ),
    Mutant(
        "the bonus token from a residual",
        _REJECTION,
        "        return target_laws[i]\n",
        "        draft = draft_laws[-1] if i else target_laws[0]\n"
        "        return residual_law(target_laws[i], draft, 1.0)\n",
        _EXACT,
    ),
    Mutant("the residual not normalised", _RESIDUAL, _LEFT, f"Law({_LEFT[4:20]}, rest)", _EXACT),
    Mutant(
        "the residual softmaxed",
        _RESIDUAL,
        _LEFT,
        "Law(target.token_ids, np.exp(rest) / np.exp(rest).sum())",
        _EXACT,
    ),
    Mutant("the recovered token from the target", _RESIDUAL, _LEFT, "target", _EXACT),
    Mutant(
        "the draft's share taken at one token only",
        _RESIDUAL,
        "rest[places[found]] -= draft.probabilities[found]",
        "rest[places[found][:1]] -= draft.probabilities[found][:1]",
        _EXACT,
    ),
    Mutant(
        "the residual not clipped",
        _RESIDUAL,
        "np.maximum(rest, 0.0, out=rest)",
        "np.abs(rest, out=rest)",
        _EXACT,
    ),
    Mutant(
        "mass outside the draft's support not counted",
        _RESIDUAL,
        _OUTSIDE,
        "return float(",
        _EXACT,
    ),
)
