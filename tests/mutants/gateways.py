"""Mistakes of the gateway: what is committed, where it ends, and what a lost stream is told."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_COMMIT = "gateway/commit.py"
_REQUEST = "gateway/request.py"
_DRAFTER = "gateway/drafter_session.py"
_ROUND = "gateway/round.py"

_COMMITTED = ("tests/gateway/test_commit.py",)
_REQUESTS = ("tests/gateway/test_request.py",)
_ROUNDS = ("tests/gateway/test_round.py",)

MUTANTS = (
    Mutant(
        "accepted tokens past the end of sequence",
        _COMMIT,
        "            token_ids[:num_taken],\n",
        "            token_ids,\n",
        _COMMITTED,
    ),
    Mutant(
        "a stop token seen only at the end of a round",
        _COMMIT,
        "if token_id in stops:",
        "if token_id == token_ids[-1] and token_id in stops:",
        _COMMITTED,
    ),
    Mutant(
        "length judged before stop",
        _COMMIT,
        "enumerate(token_ids[:room], start=1)",
        "enumerate(token_ids[: room - 1], start=1)",
        _COMMITTED,
    ),
    Mutant(
        "max_tokens seen only at the end of a round",
        _COMMIT,
        "            return room, FinishReason.LENGTH\n",
        "            return len(token_ids), FinishReason.LENGTH\n",
        _COMMITTED,
    ),
    Mutant(
        "a rejected token committed",
        _COMMIT,
        "(*proposal.token_ids[:num_accepted], verdict.next_token_id)",
        "(*proposal.token_ids[: num_accepted + 1], verdict.next_token_id)",
        _ROUNDS,
    ),
    Mutant(
        "the draft hears of the added token only",
        _ROUND,
        "committed.token_ids, length)",
        "committed.token_ids[-1:], length)",
        _ROUNDS,
    ),
    Mutant(
        "a malformed law ends the generation",
        _ROUND,
        'not error.field.startswith("proposal.")',
        "error.field",
        _ROUNDS,
    ),
    Mutant(
        "every sample of a call is the first",
        _REQUEST,
        "replace(self.spec, sample_index=index, sampling=silent)",
        "replace(self.spec, sample_index=first, sampling=silent)",
        _REQUESTS,
    ),
    Mutant(
        "requests without a seed share one",
        _REQUEST,
        "secrets.randbits(64)",
        "0",
        _REQUESTS,
    ),
    Mutant(
        "a seed verified by rejection",
        _REQUEST,
        'VerificationRule.COUPLED if request.HasField("seed") else default',
        "default",
        _REQUESTS,
    ),
    Mutant(
        "the model's own stop tokens forgotten",
        _REQUEST,
        "sampling.stop_token_ids + model.eos_token_ids",
        "sampling.stop_token_ids",
        _REQUESTS,
    ),
    Mutant(
        "an opened draft told of the prompt alone",
        _DRAFTER,
        "        self._token_ids += advance.new_token_ids\n",
        "",
        ("tests/gateway/test_drafter_session.py::test_a_lost_draft_comes_back",),
    ),
    Mutant(
        "a stale proposal verified",
        _DRAFTER,
        "if (proposal.round, proposal.base_length) != (advance.round, advance.committed_length):",
        "if proposal.round > advance.round:",
        ("tests/gateway/test_drafter_session.py::test_stale_duplicated_and_swapped_answers",),
    ),
)
