"""Verifies proposals against the target: one forward pass, one verdict, one rollback.

Records in, records out. It knows no message and no stream; only the verdict leaves it, never a law
of the target.
"""

from __future__ import annotations

from collections.abc import Callable

from paceline.engine import coupling, rejection
from paceline.engine.constraint import Grammars, Matcher
from paceline.engine.coupling import Noise
from paceline.engine.draws import Draws
from paceline.engine.engine import Engine
from paceline.engine.history import row_histories
from paceline.engine.job import Extend, Extended, Job
from paceline.engine.law import Law, decode_laws
from paceline.engine.log_probs import token_log_probs
from paceline.engine.margin import greedy_margin, race_margin
from paceline.engine.sequence import Sequence
from paceline.errors import Aborted, InvalidArgument
from paceline.records import (
    ModelIdentity,
    Opened,
    Proposal,
    ReplicaLoad,
    SamplingParams,
    SessionSpec,
    TokenLogProbs,
    Verdict,
    VerificationRule,
)
from paceline.tier import check_token_ids, open_matcher, open_sequence, settled
from verify_service.audit import Audit, Verified

# For rows of which nobody reads the law: the cheapest one, beside the raw logits.
_RAW = SamplingParams(temperature=0.0, num_log_probs=0)


class Verifier:
    """The target model behind its sessions."""

    def __init__(
        self,
        engine: Engine,
        identity: ModelIdentity,
        grammars: Grammars,
        audit: Audit,
        stamp: Callable[[ReplicaLoad], ReplicaLoad],
    ) -> None:
        """`stamp` adds to a load report what only the service knows; any thread may call it."""
        self._stamp = stamp
        self.engine = engine
        self.audit = audit
        self.identity = identity
        self.max_draft_tokens = engine.options.max_draft_tokens
        self._grammars = grammars

    @property
    def load(self) -> ReplicaLoad:
        """How busy the replica is."""
        return self._stamp(self.engine.load)

    async def open(self, spec: SessionSpec) -> VerifySession:
        """Opens a session.

        Raises:
            InvalidArgument: its tokens are not the model's, or leave no room for one more; or its
                constraint cannot be met.
        """
        check_token_ids(spec, self.identity)
        self._check_room(spec)
        matcher = await open_matcher(self._grammars, spec)
        return VerifySession(self, spec, await open_sequence(self.engine, spec), matcher)

    def _check_room(self, spec: SessionSpec) -> None:
        length, limit = len(spec.token_ids), self.identity.max_length
        if length >= limit:
            raise InvalidArgument(
                "session.token_ids",
                f"must be fewer than {limit}, the model's longest sequence; got {length}",
                metadata={"max_length": str(limit), "length": str(length)},
            )


class VerifySession:
    """One session: its committed tokens are those of its sequence."""

    def __init__(
        self, verifier: Verifier, spec: SessionSpec, sequence: Sequence, matcher: Matcher | None
    ) -> None:
        self._verifier = verifier
        self._spec = spec
        self._sequence = sequence
        self._matcher = matcher
        self._draws = Draws(spec.seed, spec.sample_index)
        self._noise = Noise(spec.seed, spec.sample_index)
        self._round = 0
        self._committed_length = len(spec.token_ids)
        self.opened = Opened(
            sequence.num_cached, verifier.identity.max_length, verifier.max_draft_tokens
        )

    async def verify(self, proposal: Proposal) -> Verdict:
        """Accepts a prefix of the proposal and adds one token.

        Raises:
            InvalidArgument: too many tokens, ids out of range, or a malformed law.
            Aborted: the proposal is not for the next round, or continues something else.
        """
        self._check(proposal)
        self._round = proposal.round
        verdict = await settled(self._verifier.engine.submit(self._sequence, self._judge(proposal)))
        self._committed_length = verdict.committed_length
        return verdict

    def close(self) -> None:
        """Frees what the session holds, between two steps of the engine."""
        self._verifier.engine.close(self._sequence)

    def _judge(self, proposal: Proposal) -> Job[Verdict]:
        """The engine's part: on its thread, one yield for the forward pass over the proposal."""
        sequence, token_ids = self._sequence, proposal.token_ids
        draft_laws = self._read_laws(proposal)
        prompt_log_probs = yield from self._prompt_log_probs(proposal.round)
        sequence.append(token_ids)
        extended = yield Extend(
            len(sequence), len(token_ids) + 1, self._spec.sampling, self._matcher
        )
        outcome = self._decide(proposal, extended.laws, draft_laws)
        if self._spec.has_fresh_seed:
            verified = Verified(proposal.token_ids, extended.laws, draft_laws, outcome)
            self._verifier.audit.observe(verified, self._draws, proposal.base_length)
        sequence.truncate(proposal.base_length + outcome.num_accepted)
        sequence.append([outcome.next_token_id])
        sequence.commit()
        if sequence.num_cached >= len(sequence):
            raise AssertionError("the cache holds the token that has not been run yet")
        return Verdict(
            round=proposal.round,
            num_accepted=outcome.num_accepted,
            next_token_id=outcome.next_token_id,
            kind=outcome.kind,
            committed_length=len(sequence),
            queue_s=extended.queue_s,
            forward_s=extended.forward_s,
            load=self._verifier.load,
            log_probs=self._log_probs(extended, proposal.base_length),
            prompt_log_probs=prompt_log_probs,
            margin=self._margin(extended, proposal),
        )

    def _prompt_log_probs(self, number: int) -> Job[tuple[TokenLogProbs, ...]]:
        """Those of the prompt, in the first round, where the session asks for them.

        Its rows run whether they are cached or not, as many at once as a proposal has: so they wait
        for no more room in a step than a decode does, and their logits are few.
        """
        num_top = self._spec.sampling.num_prompt_log_probs
        if num_top is None or number != 1:
            return ()
        prompt = self._sequence.token_ids[: self._spec.prompt_length]
        found: list[TokenLogProbs] = []
        while (start := len(found)) < len(prompt) - 1:
            end = min(start + self._verifier.max_draft_tokens + 1, len(prompt) - 1)
            extended = yield Extend(end, end - start, _RAW)
            assert extended.logits is not None, "they were asked for"
            found += token_log_probs(extended.logits, prompt[start + 1 : end + 1], num_top)
        return tuple(found)

    def _log_probs(self, extended: Extended, base_length: int) -> tuple[TokenLogProbs, ...]:
        """Those of what was just committed, where the session asks for them."""
        num_top = self._spec.sampling.num_log_probs
        if num_top is None or extended.logits is None:
            return ()
        committed = self._sequence.token_ids[base_length:]
        return token_log_probs(extended.logits[: len(committed)], committed, num_top)

    def _margin(self, extended: Extended, proposal: Proposal) -> float | None:
        """How close a plain draw was, where that is asked for and the noise is fixed."""
        params, length = self._spec.sampling, proposal.base_length
        is_coupled = self._spec.rule is VerificationRule.COUPLED
        if proposal.token_ids or extended.logits is None or not (is_coupled or params.is_greedy):
            return None
        law = extended.laws[0]
        if len(law.token_ids) > 1:
            return race_margin(law, params, self._noise, length)
        ids, prompt_length = self._sequence.token_ids[:length], self._spec.prompt_length
        [history] = row_histories(
            ids, prompt_length=prompt_length, num_rows=1, matcher=self._matcher
        )
        return greedy_margin(extended.logits[0].cpu().numpy(), params, history)

    def _read_laws(self, proposal: Proposal) -> list[Law]:
        """The laws of the draft tokens; the coupled rule asks for none, whatever came with them."""
        if self._spec.rule is VerificationRule.COUPLED:
            return []
        return decode_laws(proposal, self._verifier.identity.vocabulary_size)

    def _decide(
        self, proposal: Proposal, target_laws: list[Law], draft_laws: list[Law]
    ) -> rejection.Outcome:
        token_ids, base_length = proposal.token_ids, proposal.base_length
        if self._spec.rule is VerificationRule.COUPLED:
            return coupling.verify(target_laws, token_ids, self._noise, base_length)
        return rejection.verify(
            self._spec.rule, target_laws, draft_laws, token_ids, self._draws, base_length
        )

    def _check(self, proposal: Proposal) -> None:
        length, num_tokens = self._committed_length, len(proposal.token_ids)
        if proposal.round != self._round + 1:
            raise Aborted(
                f"round {self._round + 1} is next, not {proposal.round}",
                reason="ROUND_OUT_OF_ORDER",
                metadata={"TRUE_ROUND": str(self._round), "TRUE_LENGTH": str(length)},
            )
        if proposal.base_length != length:
            raise Aborted(
                f"{length} tokens are committed, not {proposal.base_length}",
                reason="LENGTH_MISMATCH",
                metadata={"TRUE_LENGTH": str(length)},
            )
        limit = self._verifier.max_draft_tokens
        if num_tokens > limit:
            raise InvalidArgument(
                "proposal.token_ids", f"at most {limit} draft tokens are verified, got {num_tokens}"
            )
        identity = self._verifier.identity
        if any(token_id >= identity.vocabulary_size for token_id in proposal.token_ids):
            raise InvalidArgument(
                "proposal.token_ids", f"ids must be under {identity.vocabulary_size}"
            )
        if length + num_tokens >= identity.max_length:
            raise InvalidArgument(
                "proposal.token_ids",
                f"{length} committed and {num_tokens} draft tokens leave no room for one more in "
                f"the model's longest sequence of {identity.max_length}",
            )
