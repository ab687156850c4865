"""The live audit of one replica: do emitted and draft tokens follow the laws they claim?

Both laws of a round are seen in the verifier only, so it is done there. A fault that changes the
target's law itself (a stale cache, say) moves the law and the tokens alike and is not seen here:
that is what replays of whole generations are for. Rounds are chosen before anything in them is
drawn. It knows no stream, and no rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from paceline.engine.draws import Draws, Role
from paceline.engine.law import Law
from paceline.engine.rejection import Outcome
from paceline.engine.surprise import Surprise
from paceline.records import AuditReport

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Verified:
    """A round with everything that decided it."""

    token_ids: Sequence[int]
    """The k draft tokens."""
    target_laws: Sequence[Law]
    """k+1 laws, row i behind the first i draft tokens."""
    draft_laws: Sequence[Law]
    """k laws; none under the coupled rule, which has no use for them."""
    outcome: Outcome


class Audit:
    """Owns the two running sums. The engine's thread adds to them; anyone may read the report."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._emitted = Surprise()
        self._drafted = Surprise()
        self.report = AuditReport()
        """Replaced as a whole, so that a reader needs no lock."""

    def observe(self, verified: Verified, draws: Draws, base_length: int) -> None:
        """Takes in a round of a session whose seed is used once, if it is among those chosen.

        A seed that is used again brings the same noise again: its sum would drift by itself.

        Args:
            verified: The round.
            draws: The session's randomness, which chooses rounds too.
            base_length: Number of tokens, prompt and committed, that the round continued.
        """
        if draws.uniform(base_length, 0, Role.AUDIT) >= self._share:
            return
        num_accepted = verified.outcome.num_accepted
        emitted = (*verified.token_ids[:num_accepted], verified.outcome.next_token_id)
        for law, token_id in zip(verified.target_laws, emitted, strict=False):
            self._emitted.add(law, token_id)
        # Rejected ones too: which are accepted depends on their values.
        for law, token_id in zip(verified.draft_laws, verified.token_ids, strict=False):
            self._drafted.add(law, token_id)
        self._publish(AuditReport(self._emitted.report, self._drafted.report))

    def _publish(self, report: AuditReport) -> None:
        for kind in ("emitted", "drafted"):
            old, new = getattr(self.report, kind), getattr(report, kind)
            if new.is_alarming and not old.is_alarming:
                _log.error(
                    "audit_alarm",
                    kind=kind,
                    tokens=new.num_tokens,
                    deviations=round(new.deviations, 1),
                    evidence=round(new.evidence, 2),
                )
        self.report = report
