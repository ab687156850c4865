"""The law of what a running pair emits, judged by chi-square: it must be the target's.

`python -m paceline.bench.law --target T.json --draft D.json --address HOST:PORT`, with the tables
that the pair was started with (`paceline up --target table:T.json --draft table:D.json`), which
give one law for every place. Every rule and draft length is a case of long seeded generations. It
knows what the gateway tells and nothing of how rounds are run.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from scipy.stats import chi2

from paceline.cli.client import (
    RULE_NAMES,
    Access,
    Generation,
    GenerationOptions,
    Stub,
    connect,
    generate,
    ids_prompt,
)
from paceline.cli.options import address_option

LENGTHS = (1, 4)
MIN_P_VALUE = 1e-3
MAX_SIGMAS = 4.0
_TOKENS_PER_GENERATION = 2500
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Case:
    """One rule with one draft length."""

    rule: str
    num_draft_tokens: int


@dataclass(frozen=True, slots=True)
class Finding:
    """What was seen of a case."""

    case: Case
    num_tokens: int
    p_value: float
    """Of the pairs of neighbours, against the target's law."""
    num_rounds: int
    """Rounds with a proposal."""
    accepted: float
    """Draft tokens that stood of a proposal of full length, on average."""
    sigma: float
    """Standard deviation of that average."""
    expected: float
    """What it must be; under the block rule what it must not be under."""
    num_fallbacks: int

    @property
    def sigmas(self) -> float:
        """How far `accepted` is over `expected`, in standard deviations."""
        return (self.accepted - self.expected) / self.sigma if self.sigma else 0.0

    @property
    def holds(self) -> bool:
        """Whether the law allows this; never where nothing was drafted."""
        is_fair = self.sigmas > -MAX_SIGMAS
        if self.case.rule != "rejection-block":
            is_fair = is_fair and self.sigmas < MAX_SIGMAS
        return self.num_rounds > 0 and self.p_value > MIN_P_VALUE and is_fair


def cases() -> list[Case]:
    """Every rule with every draft length."""
    return [Case(rule, length) for rule in RULE_NAMES for length in LENGTHS]


def overlap(p: Sequence[float], q: Sequence[float]) -> float:
    """Sum of min(p, q): the chance that the token rule accepts a draft token."""
    return sum(map(min, p, q))


def match(p: Sequence[float], q: Sequence[float]) -> float:
    """The chance that two races on one noise have one winner: sum 1 / sum_w max(p_w/p, q_w/q)."""
    return sum(
        1.0 / sum(max(p_w / p_v, q_w / q_v) for p_w, q_w in zip(p, q, strict=True))
        for p_v, q_v in zip(p, q, strict=True)
        if p_v > 0.0 and q_v > 0.0
    )


async def measure(
    gateway: Stub, case: Case, laws: tuple[Sequence[float], Sequence[float]], num_tokens: int
) -> Finding:
    """Generates at least `num_tokens` and judges them.

    Args:
        gateway: In front of the pair.
        case: What to ask for; the seeds are 0, 1, 2 ... for every case.
        laws: The target's and the draft's, one probability per id.
        num_tokens: Output tokens in all.
    """
    slots = asyncio.Semaphore(_AT_ONCE)

    async def run(seed: int) -> Generation:
        options = GenerationOptions(
            max_tokens=min(num_tokens, _TOKENS_PER_GENERATION),
            temperature=1.0,
            seed=seed,
            rule=case.rule,
            num_draft_tokens=case.num_draft_tokens,
            ignore_eos=True,
        )
        async with slots:
            return await generate(gateway, options.request(ids_prompt([0])))

    count = -(-num_tokens // _TOKENS_PER_GENERATION)
    return judge(case, laws, await asyncio.gather(*(run(seed) for seed in range(count))))


def judge(
    case: Case, laws: tuple[Sequence[float], Sequence[float]], generations: Sequence[Generation]
) -> Finding:
    """What the generations of a case say of it."""
    all_stats = [one.stats for one in generations]
    survival = [
        sum(stats.accepted_count_by_position[i] for stats in all_stats)
        / sum(stats.drafted_count_by_position[i] for stats in all_stats)
        for i in range(min(len(stats.drafted_count_by_position) for stats in all_stats))
    ]
    num_rounds = sum(stats.round_count for stats in all_stats)
    mean = sum(survival)  # E N = sum of P(N > i), and E N^2 = sum of (2 i + 1) P(N > i)
    variance = sum((2 * i + 1) * share for i, share in enumerate(survival)) - mean**2
    one = match(*laws) if case.rule == "coupled" else overlap(*laws)
    return Finding(
        case,
        num_tokens=sum(len(one.token_ids) for one in generations),
        p_value=pairs_p_value(laws[0], [one.token_ids for one in generations]),
        num_rounds=num_rounds,
        accepted=mean,
        sigma=math.sqrt(max(variance, 0.0) / max(1, num_rounds)),
        expected=sum(one ** (i + 1) for i in range(case.num_draft_tokens)),
        num_fallbacks=sum(sum(stats.fallbacks.values()) for stats in all_stats),
    )


def pairs_p_value(p: Sequence[float], texts: Sequence[Sequence[int]]) -> float:
    """The p-value of all pairs of neighbours, each token in one pair; 0 for an impossible one."""
    counts = Counter(pair for text in texts for pair in zip(text[::2], text[1::2], strict=False))
    shares = {(a, b): p[a] * p[b] for a in range(len(p)) for b in range(len(p))}
    possible = {pair: share for pair, share in shares.items() if share > 0.0}
    if counts.keys() - possible.keys():
        return 0.0
    total = counts.total()
    statistic = sum(
        (counts[pair] - total * share) ** 2 / (total * share) for pair, share in possible.items()
    )
    return float(chi2.sf(statistic, len(possible) - 1))


def read_law(path: Path) -> list[float]:
    """The one law of a table file.

    Raises:
        click.UsageError: it has others besides.
    """
    table = json.loads(path.read_text(encoding="utf-8"))
    if table.get("suffixes") or table.get("positions"):
        raise click.UsageError(f"{path} has other laws than its default one")
    return [float(p) for p in table["default"]]


def table_of(findings: Sequence[Finding]) -> Table:
    """The findings for people."""
    columns = ("rule", "length", "tokens", "p-value", "accepted", "expected", "sigmas")
    grid = Table(*columns, "fallbacks", "holds")
    for one in findings:
        grid.add_row(
            one.case.rule,
            str(one.case.num_draft_tokens),
            str(one.num_tokens),
            f"{one.p_value:.3g}",
            f"{one.accepted:.4f}",
            f"{'>= ' * (one.case.rule == 'rejection-block')}{one.expected:.4f}",
            f"{one.sigmas:+.1f}",
            str(one.num_fallbacks),
            "yes" if one.holds else "NO",
        )
    return grid


async def _measure_all(
    access: Access, laws: tuple[list[float], list[float]], num_tokens: int
) -> list[Finding]:
    async with connect(access) as gateway:
        return [await measure(gateway, case, laws, num_tokens) for case in cases()]


@click.command()
@address_option
@click.option("--target", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--draft", type=click.Path(exists=True, path_type=Path), required=True)
@click.option(
    "--tokens", type=click.IntRange(min=1), default=50_000, show_default=True, help="Per case."
)
def main(access: Access, target: Path, draft: Path, tokens: int) -> None:
    """Exits with 1 where a case is not what the law allows."""
    findings = asyncio.run(_measure_all(access, (read_law(target), read_law(draft)), tokens))
    Console(width=120).print(table_of(findings))
    sys.exit(not all(one.holds for one in findings))


if __name__ == "__main__":
    main()
