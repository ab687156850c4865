"""What speculation will bring, computed from one sheet of measurements.

Pure functions of frozen records: every prediction can be checked by hand. A round that asks for
k draft tokens takes a draft step for each that comes, both round trips and one step of the target,
and commits one token plus every draft token that survives. Where none comes it is a plain round and
the draft's round trip. It knows no clock, no service and no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.speed_model import expected_tokens, round_s

MIN_STEP_RATIO = 3.0
"""A draft that is less than this much faster than the target seldom pays."""
MIN_ACCEPTANCE = 0.4
MIN_OUTPUT_TOKENS = 16
_PRECISION = 1e-6


@dataclass(frozen=True, slots=True)
class SourceSheet:
    """One draft source, measured."""

    name: str
    draft_s: float
    """One draft token, in seconds."""
    round_trip_s: float
    """To the draft tier and back, queueing included, in seconds."""
    survival: tuple[float, ...]
    """Entry i: probability that more than i draft tokens of a longer proposal are accepted."""
    coverage: float = 1.0
    """Share of the rounds in which it has something to propose."""
    reach: tuple[float, ...] = ()
    """Entry i: share of the proposals of more than i tokens; empty where all are as asked for."""
    first_wait_s: float = 0.0
    """Until it has run the prompt, once a generation, in seconds."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """One target with its sources, measured."""

    verify_s: dict[int, float]
    """By number of draft tokens, 0 among them: a step of the target in seconds."""
    round_trip_s: float
    """To the verify tier and back, queueing included, in seconds."""
    sources: tuple[SourceSheet, ...]
    output_tokens: float = 0.0
    """Mean length of the outputs."""
    queued: int = 0
    """Requests that waited for the target while nothing was measured yet."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What a replica costs per hour; 0 is unknown."""

    target_per_hour: float = 0.0
    draft_per_hour: float = 0.0


NO_PRICES = Prices()


@dataclass(frozen=True, slots=True)
class Prediction:
    """One source with one proposal length."""

    source: str
    num_draft_tokens: int
    tokens_per_round: float
    """Of a round with a proposal, the target's own token included."""
    round_s: float
    speedup: float
    """Over plain decoding through the same services."""
    overlapped_speedup: float
    """The same if the draft worked ahead and guessed every outcome: no more than this."""
    break_even: float
    """Acceptance of each token, independent of the others, at which it is as fast as plain."""
    drafts_per_target: float
    """Draft replicas that keep one target replica busy."""
    cost_per_million: float
    """Price of a million tokens, each tier paid while it works; 0 without prices."""


def verify_s(sheet: Sheet, num_draft_tokens: int) -> float:
    """A step of the target over k + 1 rows, between and beyond what was measured on a line."""
    known = sorted(sheet.verify_s.items())
    if len(known) == 1:
        return known[0][1]
    below = max(0, sum(k <= num_draft_tokens for k, _ in known) - 1)
    (k0, s0), (k1, s1) = known[min(below, len(known) - 2)], known[min(below + 1, len(known) - 1)]
    return s0 + (s1 - s0) * (num_draft_tokens - k0) / (k1 - k0)


def plain_s(sheet: Sheet) -> float:
    """A token of plain decoding in seconds."""
    return round_s(0, 0.0, sheet.round_trip_s, verify_s(sheet, 0))


def predict(
    sheet: Sheet, source: SourceSheet, num_draft_tokens: int, prices: Prices = NO_PRICES
) -> Prediction:
    """Predicts one source with one length."""
    k, target_s = num_draft_tokens, verify_s(sheet, num_draft_tokens)
    reach = _reach(source, k)
    drafting_s = sum(reach) * source.draft_s
    tokens = expected_tokens(_accepted(source, k), k)
    round_trips_s = source.round_trip_s + sheet.round_trip_s
    duration_s = round_s(sum(reach), source.draft_s, round_trips_s, target_s)
    # A table has a block of k for each number of accepted tokens, 0 to k.
    table_s = source.round_trip_s + (k + 1) * drafting_s
    overlapped_s = max(sheet.round_trip_s + target_s, table_s)
    # An empty answer is waited for, unless the draft works ahead.
    silent_s = plain_s(sheet) + source.round_trip_s
    overlapped_silent_s = max(plain_s(sheet), source.round_trip_s)
    price = target_s * prices.target_per_hour + drafting_s * prices.draft_per_hour
    silent_price = verify_s(sheet, 0) * prices.target_per_hour
    return Prediction(
        source=source.name,
        num_draft_tokens=k,
        tokens_per_round=tokens,
        round_s=duration_s,
        speedup=_speedup(sheet, source, _per_token(source, tokens, duration_s, silent_s)),
        overlapped_speedup=_speedup(
            sheet, source, _per_token(source, tokens, overlapped_s, overlapped_silent_s)
        ),
        break_even=break_even(reach, duration_s / plain_s(sheet)),
        drafts_per_target=drafting_s / target_s,
        cost_per_million=_per_token(source, tokens, price, silent_price) / 3600 * 1e6,
    )


def _reach(source: SourceSheet, num_draft_tokens: int) -> tuple[float, ...]:
    """Share of the proposals that have a token at each place; in sum, the tokens that come."""
    return source.reach[:num_draft_tokens] or (1.0,) * num_draft_tokens


def _accepted(source: SourceSheet, num_draft_tokens: int) -> list[float]:
    """Entry i: share of all proposals of which more than i tokens are accepted."""
    reach = _reach(source, num_draft_tokens)
    return [has * survives for has, survives in zip(reach, source.survival, strict=False)]


def _per_token(source: SourceSheet, tokens: float, drafted: float, silent: float) -> float:
    """Seconds or money per token, from those of a round with a proposal and of a silent one."""
    coverage = source.coverage
    spent = coverage * drafted + (1.0 - coverage) * silent
    return spent / (coverage * tokens + 1.0 - coverage)


def _speedup(sheet: Sheet, source: SourceSheet, token_s: float) -> float:
    """The draft's prompt is spread over the output."""
    if sheet.output_tokens > 1:  # the first token comes before any proposal
        token_s += source.first_wait_s / (sheet.output_tokens - 1)
    return plain_s(sheet) / token_s


def break_even(reach: Sequence[float], round_ratio: float) -> float:
    """The acceptance of each token at which a round of this many plain ones pays for itself.

    The a with 1 + r1 a + ... + rk a^k = `round_ratio`, where ri is the share of the proposals that
    have a token at place i; 0 where every a pays, and over 1 where none does.
    """
    low, high = 0.0, 2.0
    while high - low > _PRECISION:
        middle = (low + high) / 2
        tokens = 1.0 + sum(share * middle**i for i, share in enumerate(reach, 1))
        low, high = (middle, high) if tokens < round_ratio else (low, middle)
    return high if high > _PRECISION else 0.0


def predictions(sheet: Sheet, prices: Prices = NO_PRICES) -> list[Prediction]:
    """Every source with every length up to the longest measured, the fastest first."""
    every = [
        predict(sheet, source, k, prices)
        for source in sheet.sources
        for k in range(1, len(source.survival) + 1)
    ]
    return sorted(every, key=lambda one: -one.speedup)


def acceptance_rate(source: SourceSheet, num_draft_tokens: int) -> float:
    """Accepted over drafted tokens at one length."""
    drafted = sum(_reach(source, num_draft_tokens))
    return sum(_accepted(source, num_draft_tokens)) / drafted if drafted else 0.0


def plain_cost_per_million(sheet: Sheet, prices: Prices) -> float:
    """Price of a million tokens of plain decoding, the target paid while it works."""
    return verify_s(sheet, 0) * prices.target_per_hour / 3600 * 1e6


def warnings(sheet: Sheet, best: Prediction) -> list[str]:
    """What speaks against speculation here, in the order of weight."""
    source = next(one for one in sheet.sources if one.name == best.source)
    rate = acceptance_rate(source, best.num_draft_tokens)
    ratio = verify_s(sheet, 0) / source.draft_s if source.draft_s else float("inf")
    found = []
    if best.speedup <= 1.0:
        found.append("no source is faster than plain decoding here: leave speculation off")
    if ratio < MIN_STEP_RATIO:
        found.append(
            f"{source.name} is {ratio:.1f} times as fast as the target, less than"
            f" {MIN_STEP_RATIO:g}: take a smaller draft"
        )
    if rate < MIN_ACCEPTANCE:
        found.append(
            f"{source.name} has {rate:.2f} of its tokens accepted, less than {MIN_ACCEPTANCE:g}:"
            " take a draft of the same family, or distil one"
        )
    if sheet.output_tokens < MIN_OUTPUT_TOKENS:
        found.append(
            f"outputs have {sheet.output_tokens:.0f} tokens, fewer than {MIN_OUTPUT_TOKENS}: most"
            " of an answer's time is its prompt"
        )
    if sheet.queued:
        found.append(
            f"the target is saturated, {sheet.queued} requests wait for it: draft tokens take rows"
            " from other sessions"
        )
    return found
