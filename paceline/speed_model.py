"""How fast speculation is: what a round commits, how long it takes, which length is the fastest.

Formulas alone. Where the numbers in them come from, a sheet of measurements or the rounds of a
running session, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def expected_tokens(survival: Sequence[float], num_draft_tokens: int) -> float:
    """Tokens that a round commits: 1 + the survival of each place."""
    return 1.0 + sum(survival[:num_draft_tokens])


def round_s(
    num_draft_tokens: float, draft_s: float, round_trips_s: float, verify_s: float
) -> float:
    """Seconds of a round: so many draft steps, the way to both tiers, one step of the target."""
    return num_draft_tokens * draft_s + round_trips_s + verify_s


def fastest_length(
    survival: Sequence[float], length_s: Callable[[int], float], preferred: int, margin: float
) -> int:
    """The proposal length with the most expected tokens per second; the shorter of equals.

    Args:
        survival: Entry i: probability that more than i draft tokens are accepted. Its length is
            the longest proposal.
        length_s: Seconds of a round by its proposal length, 0 among them.
        preferred: A length that is kept unless another one is faster by more than `margin`.
        margin: A ratio of at least 1.
    """
    tokens, rates = 1.0, [1.0 / length_s(0)]
    for length, survives in enumerate(survival, start=1):
        tokens += survives
        rates.append(tokens / length_s(length))
    fastest = max(range(len(rates)), key=rates.__getitem__)
    preferred = min(preferred, len(survival))
    return fastest if rates[fastest] > margin * rates[preferred] else preferred
