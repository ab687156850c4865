"""Whether each draft source earns its keep now, and how long proposals may be meanwhile.

Per source it looks at finished rounds alone: what was asked for, drafted and accepted, and how long
the round took. What a dropped draft token was is never looked at, so the law of the output is not
touched. It knows no sessions. A length that a client or a setting pins is not its business, and
one that weighs its own costs needs no cap; it reads the times that are kept here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import structlog

from gateway.draft_length import DraftLengthPolicy, FinishedRound, WindowLength
from gateway.metrics import GatewayMetrics
from gateway.round_times import PLAIN_PERIOD, RoundTimes

ENOUGH_ROUNDS = 100
"""Rounds that a judgement of a source rests on, of the time since its cap last moved."""
ENOUGH_PROBES = 20
"""The same while only probes draft."""
ENOUGH_PLAIN = 8
PROBE_PERIOD = 32
"""One round in so many drafts while a source is found to cost more than it gives."""
PROBE_LENGTH = 2
FASTER = 1.05
"""Estimated speed-up from which a lowered cap is raised again: under it, noise would decide."""
_log = structlog.get_logger(__name__)


class Pool:
    """The rounds of one source, and the cap that follows from them."""

    def __init__(self) -> None:
        self.times = RoundTimes()
        self.rounds: deque[FinishedRound] = deque(maxlen=2 * ENOUGH_ROUNDS)
        """Of those that asked for draft tokens, the last ones since the cap moved."""
        self.cap: int | None = None
        """Longest proposal of an adapted length; None leaves it to the session."""
        self.num_rounds = 0
        self.num_judged = 0
        """How many rounds asked for draft tokens since the last judgement."""
        self.found: frozenset[str] = frozenset()
        """What the last judgement found wanting."""

    def limit(self, wanted: int) -> int:
        """The length that an adapted proposal gets instead of the one its session wants."""
        if self.cap == 0:
            return min(wanted, PROBE_LENGTH) if self.num_rounds % PROBE_PERIOD == 0 else 0
        if self.num_rounds % PLAIN_PERIOD == PLAIN_PERIOD - 1:
            return 0
        return wanted if self.cap is None else min(wanted, self.cap)

    @property
    def is_due(self) -> bool:
        """Whether there is enough that is new for a judgement."""
        return self.num_judged >= (ENOUGH_PROBES if self.cap == 0 else ENOUGH_ROUNDS)

    @property
    def acceptance(self) -> float:
        """Accepted over drafted tokens; 0 without any."""
        num_drafted = sum(r.num_drafted for r in self.rounds)
        return sum(r.num_accepted for r in self.rounds) / num_drafted if num_drafted else 0.0

    @property
    def token_s(self) -> float:
        """Seconds per token of the rounds that asked for draft tokens, fallbacks among them."""
        num_tokens = sum(r.num_accepted + 1 for r in self.rounds)
        return sum(r.round_s for r in self.rounds) / num_tokens

    def move(self, *, is_slower: bool, is_faster: bool, is_poor: bool) -> None:
        """Moves the cap after a judgement; a moved one starts from no evidence."""
        cap = self.cap
        if is_slower or (is_poor and not is_faster):
            mean_asked = sum(r.num_asked for r in self.rounds) / len(self.rounds)
            cap = int(mean_asked / 2) if is_slower else max(1, int(mean_asked / 2))
            cap = 0 if self.cap == 0 else cap
        elif cap is not None and is_faster:
            cap = max(PROBE_LENGTH, 2 * cap)
            cap = None if cap > max(r.num_asked for r in self.rounds) * 2 else cap
        self.num_judged = 0
        if cap != self.cap or cap == 0:  # probes of long ago say nothing of now
            self.cap = cap
            self.rounds.clear()


class Watch:
    """Owns the pools of every source, and the times of plain rounds that they share."""

    def __init__(self, metrics: GatewayMetrics, low_acceptance: float) -> None:
        self._metrics = metrics
        self._low_acceptance = low_acceptance
        self._pools: dict[str, Pool] = {}
        self._plain_s: deque[float] = deque(maxlen=64)

    def pool(self, source: str) -> Pool:
        """The pool of a source."""
        return self._pools.setdefault(source, Pool())

    def watched(self, policy: DraftLengthPolicy, source: Callable[[], str]) -> DraftLengthPolicy:
        """A policy whose rounds are told here, under the cap of the source if it knows no times."""
        return _WatchedLength(policy, self, source)

    def times(self, source: str) -> RoundTimes | None:
        """How long rounds with a source take; None while there is no source."""
        return self.pool(source).times if source else None

    def observe(self, source: str, finished: FinishedRound) -> None:
        """Takes in one round that is not the first of its generation."""
        if finished.num_asked == 0:
            self._plain_s.append(finished.round_s)
        if not source:
            return
        pool = self.pool(source)
        pool.num_rounds += 1
        pool.times.observe(finished)
        if finished.num_asked:
            pool.rounds.append(finished)
            pool.num_judged += 1
            if pool.is_due:
                self._judge(source, pool)

    def speedup(self, source: str) -> float | None:
        """Time of a plain round over time per token with this source; None while not known."""
        pool = self.pool(source)
        if len(self._plain_s) < ENOUGH_PLAIN or not pool.rounds:
            return None
        return sum(self._plain_s) / len(self._plain_s) / pool.token_s

    def _judge(self, source: str, pool: Pool) -> None:
        speedup, acceptance = self.speedup(source), pool.acceptance
        is_slower = speedup is not None and speedup < 1
        is_faster = speedup is not None and speedup >= FASTER
        is_poor = acceptance < self._low_acceptance
        found = frozenset(
            name for name, is_so in (("slower", is_slower), ("acceptance", is_poor)) if is_so
        )
        pool.move(is_slower=is_slower, is_faster=is_faster, is_poor=is_poor)
        self._metrics.observe_source(source, speedup, acceptance, pool.cap, found - pool.found)
        if found != pool.found:
            tell = _log.warning if found else _log.info
            tell(
                "speculation",
                draft_source=source,
                found=sorted(found),
                speedup=None if speedup is None else round(speedup, 3),
                acceptance=round(acceptance, 3),
                draft_length_cap=pool.cap,
            )
        pool.found = found


class _WatchedLength:
    """A session's own policy, under the cap of its source where it knows no times."""

    def __init__(self, policy: DraftLengthPolicy, watch: Watch, source: Callable[[], str]) -> None:
        self._policy = policy
        self._is_capped = isinstance(policy, WindowLength)
        self._watch = watch
        self._source = source

    @property
    def num_draft_tokens(self) -> int:
        """What the session wants, if the source may."""
        wanted, source = self._policy.num_draft_tokens, self._source()
        is_capped = self._is_capped and source
        return self._watch.pool(source).limit(wanted) if is_capped else wanted

    def observe(self, finished: FinishedRound) -> None:
        """Takes in one round."""
        self._watch.observe(self._source(), finished)
        self._policy.observe(finished)
