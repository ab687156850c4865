"""Mistakes of the draft tier: what it ships is not what it drew from, or tells what it drew."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_DRAFTER = "draft_service/drafters/model.py"
_CHAIN = "draft_service/drafters/history.py"
_LAW = "paceline/engine/law.py"
_VERIFIER = "verify_service/verifier.py"

_SHIPPED = ("tests/draft_service/test_model_drafter.py::test_shipped_weights_are_those_drawn_from",)
_SERVED = "tests/verify_service/test_law.py::"
_OVERLAP = (_SERVED + "test_acceptance_is_the_overlap",)
_PROCESSED = (_SERVED + "test_processed_draft",)

_APPEND = "            laws.append(law)\n"
_DRAW = "sequence.append([self._draw(law, base_length, position)])"
_CUT = "length = min(length, chain_length(drawn, self._sampling.stop_token_ids))"
_FLATTER = "IntegerLaw(law.token_ids, (law.weights**0.5).astype(int))"

MUTANTS = (
    Mutant(
        "what a seed drew before, proposed to it again",
        "draft_service/drafters/suffix.py",
        "self._remembers = spec.has_fresh_seed or not is_drawn",
        "self._remembers = True",
        ("tests/draft_service/test_suffix.py::test_the_same_seed_again_follows_the_law",),
    ),
    Mutant(
        "drawn from the truncated law, shipped whole",
        _DRAFTER,
        _APPEND,
        "            laws.append(truncate(wanted, mass=1.0, max_ids=1 << 20))\n",
        _SHIPPED,
    ),
    Mutant(
        "drawn after processing, shipped before it",
        _DRAFTER,
        _APPEND,
        f"            laws.append({_FLATTER})\n",
        _PROCESSED,
    ),
    Mutant(
        "drawn before processing, shipped after it",
        _DRAFTER,
        _DRAW,
        f"sequence.append([self._draw({_FLATTER}, base_length, position)])",
        _PROCESSED,
    ),
    Mutant(
        "a token taken by argmax, shipped with its softmax",
        _DRAFTER,
        "return law.draw(self._draws.bits(base_length, position, Role.DRAFT))",
        "return int(law.token_ids[law.weights.argmax()])",
        _OVERLAP,
    ),
    Mutant(
        "the draft's law lost on the way out",
        _DRAFTER,
        "return LawEncoding.SPARSE, encode_sparse(laws)",
        'return LawEncoding.POINT_MASS, b""',
        _OVERLAP,
    ),
    Mutant(
        "the draft's law lost on the way in",
        _VERIFIER,
        "return decode_laws(proposal, self._verifier.identity.vocabulary_size)",
        "return [Law.point(token_id) for token_id in proposal.token_ids]",
        _OVERLAP,
    ),
    Mutant(
        "each law shipped with the next token",
        _DRAFTER,
        "self._encode(laws[:length])",
        "self._encode([*laws[1:length], *laws[:1]])",
        ("tests/draft_service/test_model_drafter.py::test_shipped_weights_are_those_drawn_from",),
    ),
    Mutant(
        "weights that do not sum to a power of two",
        _LAW,
        "    weights[0] += total - np.add.reduce(weights)\n",
        "",
        ("tests/engine/test_law.py",),
    ),
    Mutant(
        "a dropped weight's id stays",
        _LAW,
        "        weights = weights[weights > 0]\n",
        "        pass\n",
        ("tests/engine/test_law.py",),
    ),
    Mutant(
        "a drawn stop token stripped from the proposal",
        _CHAIN,
        "            return index\n",
        "            return index - 1\n",
        ("tests/draft_service/test_model_drafter.py::test_stop_token_ends_the_chain",),
    ),
    Mutant(
        "drafting ends early at a stop token",
        _DRAFTER,
        _APPEND,
        _APPEND + "            if sequence.token_ids[-1] in self._sampling.stop_token_ids:\n"
        "                break\n",
        ("tests/draft_service/test_model_drafter.py::test_time_does_not_tell_what_was_drawn",),
    ),
    Mutant(
        "the last token dropped where the draft doubts it",
        _DRAFTER,
        _CUT,
        _CUT + "\n        length -= laws[-1].as_law().probability(drawn[-1]) < 0.3",
        _OVERLAP,
    ),
    Mutant(
        "nothing is drafted",
        _DRAFTER,
        "num_tokens = min(advance.num_draft_tokens, self",
        "num_tokens = min(0, self",
        _OVERLAP,
    ),
    Mutant(
        "nothing is accepted under the coupled rule",
        "paceline/engine/coupling.py",
        "        if drawn != token_id:\n",
        "        if True:\n",
        ("tests/verify_service/test_coupled.py::test_law_of_the_output",),
    ),
)
