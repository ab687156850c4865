"""The loop: draft, verify, commit, until something ends the generation.

It sees records only: no messages, no streams, no logits, and no law inside a proposal. Who drafts
and who verifies are two protocols, so that the loop can be run without either tier.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from gateway.commit import Committed, Committer
from gateway.draft_length import DraftLengthPolicy, FinishedRound
from paceline.errors import InvalidArgument
from paceline.records import Advance, Proposal, Verdict


class Verifier(Protocol):
    """The verify tier as one session of it looks from here."""

    @property
    def max_draft_tokens(self) -> int:
        """Longest proposal that it takes."""

    async def verify(self, proposal: Proposal) -> Verdict:
        """The verdict on a proposal; an empty one decodes one token.

        Raises:
            PacelineError: the session is lost and could not be reopened.
            InvalidArgument: a field of the proposal is refused; another may be sent in its place.
        """


class Drafter(Protocol):
    """The draft tier as one session of it looks from here."""

    async def propose(self, advance: Advance) -> Proposal:
        """A proposal of at most `advance.num_draft_tokens` that continues what is committed.

        A draft that is absent, lost or late gives an empty one. How long it is waited for never
        depends on a drafted value.

        Raises:
            PacelineError: the pair of models does not fit, so that no draft will ever come.
        """

    def give_up(self, cause: str) -> None:
        """Ends the session: its last proposal was refused, and every later one will be empty."""


class Observer(Protocol):
    """Who is told of every round."""

    def observe(self, proposal: Proposal, verdict: Verdict, num_asked: int, round_s: float) -> None:
        """Takes in one round of `round_s` seconds, for which `num_asked` draft tokens were asked.

        It comes before what the round committed is yielded.
        """


@dataclass(frozen=True, slots=True)
class Pair:
    """Both tiers of one generation."""

    verifier: Verifier
    drafter: Drafter


async def run_rounds(
    pair: Pair,
    committer: Committer,
    policy: DraftLengthPolicy,
    observer: Observer,
    *,
    base_length: int,
    last_length: int,
) -> AsyncGenerator[Committed, None]:
    """Runs rounds and yields what each one committed, the last with its finish reason.

    Args:
        pair: Who verifies and who drafts.
        committer: Owner of the committed output.
        policy: Decides how long the proposals are.
        observer: Is told of each round.
        base_length: Tokens, prompt and committed, before the first round.
        last_length: Tokens, prompt and output, that the generation may reach.

    Raises:
        PacelineError: the target is lost, or it broke the protocol.
    """
    # The first proposal is empty and leaves with the opening of the session: the first token never
    # waits for the draft.
    proposal, length = Proposal(1, base_length), 0
    started_s = time.perf_counter()
    while True:
        proposal, verdict = await _verify(pair, proposal)
        committed = committer.commit(proposal, verdict)
        round_s, num_asked = time.perf_counter() - started_s, length
        if proposal.round > 1:  # the first opens the streams and runs the prompt
            policy.observe(FinishedRound.of(proposal, verdict, num_asked, round_s))
        if committed.finish_reason is not None:
            observer.observe(proposal, verdict, num_asked, round_s)
            yield committed
            return
        started_s = time.perf_counter()
        # A verdict always adds one token of its own, so the last place is never drafted for.
        room = last_length - verdict.committed_length - 1
        length = min(policy.num_draft_tokens, pair.verifier.max_draft_tokens, room)
        advance = Advance(proposal.round + 1, verdict.committed_length, committed.token_ids, length)
        drafting = asyncio.create_task(pair.drafter.propose(advance))
        try:
            await asyncio.sleep(0)  # the advance leaves first: the draft works while we tell
            observer.observe(proposal, verdict, num_asked, round_s)
            yield committed
            proposal = await drafting
        finally:
            await _end(drafting)


async def _verify(pair: Pair, proposal: Proposal) -> tuple[Proposal, Verdict]:
    """The verdict on a proposal, or on an empty one where it is refused.

    What is wrong with a proposal is its draft's fault, so the draft is given up and not the text.
    """
    try:
        return proposal, await pair.verifier.verify(proposal)
    except InvalidArgument as error:
        if not proposal.token_ids or not error.field.startswith("proposal."):
            raise
    pair.drafter.give_up("malformed")
    proposal = Proposal(proposal.round, proposal.base_length)
    return proposal, await pair.verifier.verify(proposal)


async def _end(task: asyncio.Task[Proposal]) -> None:
    """Ends a task that nobody waits for any more; what it failed of is no longer of interest."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
