"""`paceline check`: what it compares, and what each outcome looks like."""

from __future__ import annotations

import json
from typing import Any

from paceline.v1 import gateway_pb2, speculation_pb2

UNSET = speculation_pb2.VERIFICATION_RULE_UNSPECIFIED
COUPLED = speculation_pb2.VERIFICATION_RULE_COUPLED


def test_identical(gateway: Any, paceline: Any) -> None:
    """Equal output with drafts both right and wrong passes."""
    result = paceline("check", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["verdict"]) == (0, "IDENTICAL")
    assert report["num_prompts"] == 4
    for way in ("greedy", "seeded"):
        tally = report[way]
        assert tally["num_comparisons"] == 4 * 2 * 5
        assert (tally["drafted_tokens"], tally["rejected_tokens"]) == (160, 80)


def test_every_source_and_length_is_compared(gateway: Any, paceline: Any) -> None:
    """Plain decoding once per prompt, then each source with each length, greedy and seeded."""
    paceline("check")
    lengths: tuple[int | None, ...] = (0, 1, 4, 8, None)
    expected = {(source, length) for source in ("int8", "ngram") for length in lengths}
    for temperature, top_p, is_seeded, rule in (
        (0.0, 0.0, False, UNSET),
        (0.8, 0.95, True, COUPLED),
    ):
        asked = [r for r in gateway.requests if r.sampling.temperature == temperature]
        assert {("none", 0), *expected} == {_ways(request) for request in asked}
        assert 4 * 11 == len(asked)
        assert {(top_p, is_seeded, rule)} == {
            (r.sampling.top_p, r.HasField("seed"), r.speculation.rule) for r in asked
        }
    assert 8 * 11 == len(gateway.requests)


def _ways(request: gateway_pb2.GenerateRequest) -> tuple[str, int | None]:
    speculation = request.speculation
    is_pinned = speculation.HasField("draft_token_count")
    return speculation.draft_source, speculation.draft_token_count if is_pinned else None


def test_difference_is_located(gateway: Any, paceline: Any) -> None:
    """The first difference ends the check with 1 and says where it is."""
    gateway.wrong_for = "ngram"
    result = paceline("check", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["verdict"]) == (1, "DIFFERENT")
    found = report["difference"]
    assert (found["draft"], found["draft_length"], found["index"]) == ("ngram", "0", 8)
    assert (found["plain_token_id"], found["token_id"]) == (ord("i"), ord("!"))
    assert found["sampling"] == "greedy"
    assert report["greedy"]["num_comparisons"] == 6
    assert "output token 8: plain 105, speculative 33" in paceline("check").stdout


def test_difference_of_seeded_output_is_located(gateway: Any, paceline: Any) -> None:
    """Seeded output is compared too, and a difference in it says so."""
    gateway.wrong_for, gateway.is_wrong_greedily = "ngram", False
    result = paceline("check")
    assert result.exit_code == 1
    assert "seeded\n  draft source ngram, draft length 0\n  output token 8:" in result.stdout


def test_seeded_output_without_a_rejection_is_inconclusive(gateway: Any, paceline: Any) -> None:
    """Greedy rejections prove nothing about seeded output."""
    gateway.rejects_seeded = False
    result = paceline("check")
    assert result.exit_code == 1
    assert result.stdout.startswith("INCONCLUSIVE")


def test_nothing_accepted_is_inconclusive(gateway: Any, paceline: Any) -> None:
    """A draft that is never right proves nothing."""
    gateway.num_accepted = 0
    result = paceline("check")
    assert result.exit_code == 1
    assert result.stdout.startswith("INCONCLUSIVE")


def test_nothing_rejected_is_inconclusive(gateway: Any, paceline: Any) -> None:
    """A draft that is always right proves nothing either."""
    gateway.num_accepted = gateway.num_drafted
    assert paceline("check").exit_code == 1


def test_nothing_drafted_is_inconclusive(gateway: Any, paceline: Any) -> None:
    """Without drafts there is nothing to compare."""
    gateway.num_drafted = gateway.num_accepted = 0
    assert paceline("check").exit_code == 1


def test_own_ids_where_text_is_refused(gateway: Any, paceline: Any) -> None:
    """A model that cannot write the prompts is checked with ids of its own, the same each time."""
    gateway.can_tokenize = False
    paceline("check")
    first = [tuple(request.prompt.token_ids.token_ids) for request in gateway.requests]
    gateway.requests.clear()
    paceline("check")
    assert first == [tuple(request.prompt.token_ids.token_ids) for request in gateway.requests]
    assert len(set(first)) == 4
    assert {8} == {len(ids) for ids in first}


def test_output_stays_within_the_model(gateway: Any, paceline: Any) -> None:
    """Prompt and output together are no longer than the model's longest sequence."""
    paceline("check", "--max-tokens", "1000")
    assert {62} == {request.max_tokens for request in gateway.requests}
