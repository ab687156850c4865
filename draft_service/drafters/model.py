"""Drafts with a causal language model: any that speaks the target's tokens.

Tokens are drawn from a truncated law with integer weights, and exactly those weights are shipped,
so the law on the wire is the law that was drawn from (arXiv:2211.17192 needs no more than that).
Under the coupled rule they are drawn from the noise that the target shares, and no law is shipped.
Where it has tokens that the target lacks they are never drawn; one that it lacks itself ends its
drafting for the session. It knows no verdict and no stream.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import takewhile

from draft_service.drafters.history import CommittedLength, chain_length
from paceline.engine.constraint import Grammars, Matcher
from paceline.engine.coupling import Noise
from paceline.engine.draws import Draws, Role
from paceline.engine.engine import Engine
from paceline.engine.job import Extend, Job
from paceline.engine.law import IntegerLaw, Law, encode_sparse, truncate
from paceline.engine.sequence import Sequence as TokenSequence
from paceline.records import (
    Advance,
    DraftSource,
    LawEncoding,
    ModelIdentity,
    Opened,
    Proposal,
    ReplicaLoad,
    SamplingParams,
    SessionSpec,
    VerificationRule,
)
from paceline.tier import check_token_ids, open_matcher, open_sequence

_LAG = 16
"""Tokens that a draft may be behind while none is asked for: one step catches up with them."""


class ModelDrafter:
    """A model that drafts for all its sessions, batched by its engine."""

    def __init__(
        self, source: DraftSource, engine: Engine, identity: ModelIdentity, grammars: Grammars
    ) -> None:
        """Takes the model's own identity; the one of the source speaks the target's tokens."""
        assert source.model is not None
        self.source = source
        self.engine = engine
        self.identity = identity
        self.num_shared_ids = min(identity.vocabulary_size, source.model.vocabulary_size)
        self._grammars = grammars

    async def open(self, spec: SessionSpec) -> ModelDraftSession:
        """Opens a session and starts on its prompt.

        One longer than the draft's own context, or with a token that the draft lacks, is taken too:
        its proposals are empty.
        """
        assert self.source.model is not None
        check_token_ids(spec, self.source.model)
        matcher = await open_matcher(self._grammars, spec) if self.knows(spec.token_ids) else None
        return ModelDraftSession(self, spec, await open_sequence(self.engine, spec), matcher)

    def knows(self, token_ids: Sequence[int]) -> bool:
        """Whether the model can run these tokens of the target's."""
        return max(token_ids, default=0) < self.identity.vocabulary_size

    @property
    def is_alive(self) -> bool:
        """Whether the engine lives."""
        return self.engine.is_alive

    def load(self) -> ReplicaLoad:
        """The engine's load."""
        return self.engine.load

    def stop(self) -> None:
        """Ends the engine."""
        self.engine.stop()


class ModelDraftSession:
    """One session: a sequence that runs ahead of what is committed, and is called back."""

    def __init__(
        self,
        drafter: ModelDrafter,
        spec: SessionSpec,
        sequence: TokenSequence,
        matcher: Matcher | None,
    ) -> None:
        self._drafter = drafter
        self._engine = drafter.engine
        self._identity = drafter.identity
        self._is_lost = not drafter.knows(spec.token_ids)
        """Whether a token that the draft lacks was committed."""
        self._sampling = _own_sampling(spec.sampling, drafter.identity.vocabulary_size)
        self._sequence = sequence
        self._matcher = matcher
        self._rule = spec.rule
        self._draws = Draws(spec.seed, spec.sample_index)
        self._noise = Noise(spec.seed, spec.sample_index)
        self._committed = CommittedLength(len(spec.token_ids))
        self.opened = Opened(
            sequence.num_cached,
            drafter.identity.max_length,
            drafter.engine.options.max_draft_tokens,
            drafter.source.name,
        )
        if len(spec.token_ids) < drafter.identity.max_length and not self._is_lost:
            self._engine.submit(sequence, self._prefill())

    def advance(self, advance: Advance) -> Future[Proposal]:
        """Takes in what was committed and drafts; see `DraftSession.advance`."""
        assert self._drafter.source.model is not None
        before = self._committed.advance(advance, self._drafter.source.model.vocabulary_size)
        self._is_lost = self._is_lost or not self._drafter.knows(advance.new_token_ids)
        job = self._draft(before, advance, time.perf_counter())
        return self._engine.submit(self._sequence, job)

    def close(self) -> None:
        """Frees the sequence."""
        self._engine.close(self._sequence)

    def _prefill(self) -> Job[None]:
        """Runs all but the last token, which the first draft step runs."""
        yield Extend(len(self._sequence) - 1, 0, self._sampling)

    def _draft(self, before: int, advance: Advance, started_at: float) -> Job[Proposal]:
        """Catches up with what was committed, then draws token by token behind what is forced.

        Catching up is the same step as drafting: after a block accepted in full its last token was
        never run, after a partial one the rest is truncated; both are only a lower cached length.
        """
        sequence = self._sequence
        sequence.replace_tail(before, advance.new_token_ids)
        sequence.commit()
        base_length = len(sequence)
        room = 0 if self._is_lost else self._identity.max_length - base_length
        num_tokens = min(advance.num_draft_tokens, self._engine.options.max_draft_tokens, room)
        if num_tokens < 1:
            # Past what the draft can run there is nothing to keep warm.
            if room > 0 and base_length - 1 - sequence.num_cached >= _LAG:
                yield Extend(base_length - 1, 0, self._sampling)
            return Proposal(advance.round, base_length)
        walker = self._walk()
        forced = self._shared(walker.forced()[:num_tokens]) if walker else []
        sequence.append(forced)
        laws = [truncate(Law.point(token_id)) for token_id in forced]
        length = num_tokens
        # To the end of the block even after a stop token: the time a proposal takes must not tell
        # what was drawn, or dropping a late one would bias the output.
        for position in range(len(forced), num_tokens):
            extended = yield Extend(len(sequence), 1, self._sampling, walker)
            wanted = extended.laws[0].below(self._drafter.num_shared_ids)
            if wanted.error is not None:  # masks left nothing: the proposal ends before here
                length, wanted = min(length, position), Law.point(0)
            law = truncate(wanted)
            sequence.append([self._draw(law, base_length, position)])
            laws.append(law)
        drawn = sequence.token_ids[base_length:]
        length = min(length, chain_length(drawn, self._sampling.stop_token_ids))
        encoding, shipped = self._encode(laws[:length])
        return Proposal(
            round=advance.round,
            base_length=base_length,
            token_ids=tuple(drawn[:length]),
            encoding=encoding,
            law=shipped,
            draft_s=time.perf_counter() - started_at,
        )

    def _walk(self) -> Matcher | None:
        """A matcher behind what is committed, for one block; none without a constraint.

        What it forces there depends on committed text alone, and so does the time that is saved by
        not running it; behind a drawn token every place is run.
        """
        matcher = self._matcher
        if matcher is None:
            return None
        output = self._sequence.token_ids[self._sequence.prompt_length :]
        matcher.accept(output[matcher.num_tokens :])
        return matcher.fork()

    def _shared(self, token_ids: list[int]) -> list[int]:
        """The tokens before the first one that the target lacks."""
        return list(takewhile(lambda t: t < self._drafter.num_shared_ids, token_ids))

    def _draw(self, law: IntegerLaw, base_length: int, position: int) -> int:
        if self._rule is VerificationRule.COUPLED:
            return self._noise.draw(law.as_law(), base_length + position)
        return law.draw(self._draws.bits(base_length, position, Role.DRAFT))

    def _encode(self, laws: list[IntegerLaw]) -> tuple[LawEncoding, bytes]:
        if self._sampling.is_greedy:
            return LawEncoding.POINT_MASS, b""
        if self._rule is VerificationRule.COUPLED:
            return LawEncoding.SHARED_NOISE, b""
        return LawEncoding.SPARSE, encode_sparse(laws)


def _own_sampling(sampling: SamplingParams, vocabulary_size: int) -> SamplingParams:
    """The target's parameters, copied so that more is accepted, as far as the draft has the ids.

    Log-probabilities are the target's to tell.
    """
    size = vocabulary_size
    return replace(
        sampling,
        num_log_probs=None,
        stop_token_ids=tuple(t for t in sampling.stop_token_ids if t < size),
        logit_bias=tuple(one for one in sampling.logit_bias if one[0] < size),
        banned_sequences=tuple(b for b in sampling.banned_sequences if max(b, default=0) < size),
    )
