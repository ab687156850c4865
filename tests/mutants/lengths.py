"""Mistakes of the draft length that weighs costs."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_COST = "gateway/cost_length.py"
_TIMES = "gateway/round_times.py"
_COST_TESTS = ("tests/gateway/test_cost_length.py",)
_TIMES_TESTS = ("tests/gateway/test_round_times.py",)
_TURNS = "gateway/turns.py"
_TURNS_TESTS = ("tests/gateway/test_turns.py",)

MUTANTS = (
    Mutant(
        "the other sessions' rows taken as free",
        _TIMES,
        "load.num_sharing * (1 + num_draft_tokens)",
        "load.num_sharing + num_draft_tokens",
        _TIMES_TESTS,
    ),
    Mutant(
        "the wait for a step not counted",
        _TIMES,
        "(1 + load.waiting) * self",
        "self",
        _TIMES_TESTS,
    ),
    Mutant(
        "the wait for a step taken as the step",
        _TIMES,
        "finished.num_drafted + 1, finished.forward_s",
        "finished.num_drafted + 1, finished.queue_s + finished.forward_s",
        _COST_TESTS,
    ),
    Mutant(
        "a hiccup of the draft taken as its time",
        _TIMES,
        "statistics.median(self._values)",
        "statistics.mean(self._values)",
        _TIMES_TESTS,
    ),
    Mutant(
        "plain rounds never due",
        _TIMES,
        "self._num_plain * PLAIN_PERIOD <= self._num_rounds",
        "False",
        _TIMES_TESTS,
    ),
    Mutant(
        "draft tokens that did not come left out",
        _COST,
        "range(min(finished.num_asked, finished.num_accepted + 1))",
        "range(min(finished.num_drafted, finished.num_accepted + 1))",
        _COST_TESTS,
    ),
    Mutant(
        "no way back from a length of 0",
        _COST,
        "length == 0 and is_probe",
        "False",
        _COST_TESTS,
    ),
    Mutant(
        "survival of a place taken apart from those before it",
        _COST,
        "survives *= belief",
        "survives = belief",
        _COST_TESTS,
    ),
    Mutant(
        "the round that opens the streams taken as a usual one",
        "gateway/round.py",
        "if proposal.round > 1:",
        "if proposal.round:",
        ("tests/gateway/test_round.py",),
    ),
    Mutant(
        "a plain round among rounds that draft taken for plain decoding",
        _TURNS,
        "if running < 2 or self._num_running[drafts] < ALIKE * running:",
        "if running < 2:",
        _TURNS_TESTS,
    ),
    Mutant(
        "prompts that are run twice not counted",
        _TURNS,
        "return self._first_s / self.num_first + num_later",
        "return num_later",
        _TURNS_TESTS,
    ),
    Mutant(
        "a turn of long outputs compared as it is",
        _TURNS,
        "plain.generation_s(num_tokens)\n",
        "plain.generation_s(plain.num_tokens / plain.num_first)\n",
        _TURNS_TESTS,
    ),
    Mutant(
        "a generation that began alone drafts on beside others",
        _TURNS,
        "return self._turns.num_running > 1 and not self._turns.drafts",
        "return False",
        _TURNS_TESTS,
    ),
    Mutant(
        "the first of many that come at once taken as alone",
        _TURNS,
        "if not self.num_running and not self._has_company:",
        "if not self.num_running:",
        _TURNS_TESTS,
    ),
    Mutant(
        "a slow kind tried as often as one that is hardly slower",
        _TURNS,
        "hold = int(self._num_begun * excess / LOST)",
        "hold = 0",
        _TURNS_TESTS,
    ),
)
