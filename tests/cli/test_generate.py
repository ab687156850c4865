"""`paceline generate`: what it asks, what it prints, how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from paceline.v1 import speculation_pb2


def test_prints_the_text(gateway: Any, paceline: Any) -> None:
    """Away from a terminal the output is the text and a line break, nothing else."""
    result = paceline("generate", "hi")
    assert (result.exit_code, result.stdout) == (0, "abcdefghi\n")


def test_json_is_the_contract(gateway: Any, paceline: Any) -> None:
    """--json prints one object with exactly the contract's keys."""
    answer = json.loads(paceline("generate", "hi", "--json").stdout)
    assert {
        "text": "abcdefghi",
        "token_ids": [ord(letter) for letter in "abcdefghi"],
        "finish_reason": "STOP",
        "usage": {"prompt_tokens": 2, "completion_tokens": 9},
        "stats": {
            "rounds": 3,
            "drafted_tokens": 4,
            "accepted_tokens": 2,
            "acceptance_rate": 0.5,
            "acceptance_length": 3.0,
            "tokens_per_second": 30.0,
            "time_to_first_token_ms": 5.0,
            "round_ms_p50": 40.0,
            "overhead_ms_p50": 0.0,
            "wire_bytes_per_token": 0.0,
            "fallbacks": {"draft_late": 1},
        },
    } == answer


def test_log_probs_are_in_the_json(gateway: Any, paceline: Any) -> None:
    """One object per id, in order, with the likeliest ids beside it."""
    answer = json.loads(paceline("generate", "hi", "--json", "--logprobs", "1").stdout)
    assert [
        {"chosen": -ord(letter), "top": [{"token_id": ord(letter), "log_prob": -0.5}]}
        for letter in "abcdefghi"
    ] == answer["log_probs"]


def test_prompt_log_probs_are_in_the_json(gateway: Any, paceline: Any) -> None:
    """The same form, for the prompt; not there unless asked for."""
    answer = json.loads(paceline("generate", "hi", "--json", "--prompt-logprobs", "1").stdout)
    expected = {"chosen": -2.0, "top": [{"token_id": 2, "log_prob": -0.5}]}
    assert [expected] == answer["prompt_log_probs"]
    assert "log_probs" not in answer
    assert gateway.requests[0].sampling.prompt_log_prob_count == 1


def test_samples_are_printed_one_after_the_other(gateway: Any, paceline: Any) -> None:
    """Each under its number, in order, however their pieces came."""
    result = paceline("generate", "hi", "--n", "2")
    assert "sample 0\nabcdefghi\n\nsample 1\nABCDEFGHI\n\n" == result.stdout
    assert 2 == gateway.requests[0].sample_count


@pytest.mark.parametrize("count", [1, 3])
def test_samples_are_in_the_json(gateway: Any, paceline: Any, count: int) -> None:
    """With --n there is a list, also of one; the usage is that of the call."""
    result = paceline("generate", "hi", "--n", str(count), "--json", "--prompt-logprobs", "1")
    answer = json.loads(result.stdout)
    assert {"prompt_tokens": 2, "completion_tokens": 9 * count} == answer["usage"]
    texts = [sample["text"] for sample in answer["samples"]]
    assert ["abcdefghi", "ABCDEFGHI", "ABCDEFGHI"][:count] == texts
    told = ["prompt_log_probs" in sample for sample in answer["samples"]]
    assert [True, False, False][:count] == told


def test_prompt_is_one_user_turn(gateway: Any, paceline: Any) -> None:
    """Without --raw the prompt goes through the chat template."""
    paceline("generate", "hi")
    (message,) = gateway.requests[0].prompt.chat.messages
    assert ("user", "hi") == (message.role, message.content)


def test_raw_prompt_from_standard_input(gateway: Any, paceline: Any) -> None:
    """`-` reads standard input, and --raw sends it as it is."""
    paceline("generate", "-", "--raw", stdin="line one\nline two")
    assert gateway.requests[0].prompt.text == "line one\nline two"


def test_every_option_is_sent(gateway: Any, paceline: Any) -> None:
    """Each flag reaches its field."""
    flags = "--max-tokens 5 --temperature 0 --top-p 0.9 --top-k 3 --stop A --stop B"
    more = "--rule rejection-token --draft ngram --num-draft-tokens 2 --seed 18446744073709551615"
    rest = "--min-p 0.1 --repetition-penalty 1.2 --presence-penalty 0.5 --frequency-penalty -0.5"
    last = "--logit-bias 7=-1.5 --logit-bias 9=2 --min-tokens 3 --ignore-eos --logprobs 0 --json"
    paceline("generate", "hi", *f"{flags} {more} {rest} {last}".split())
    request = gateway.requests[0]
    assert (request.max_tokens, request.seed, list(request.stop_strings)) == (
        5,
        2**64 - 1,
        ["A", "B"],
    )
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0, 0.9, 3)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.2)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert {7: -1.5, 9: 2.0} == dict(sampling.logit_bias)
    assert (3, True, True) == (
        sampling.min_tokens,
        sampling.ignore_eos,
        sampling.HasField("log_prob_count"),
    )
    speculation = request.speculation
    assert (speculation.draft_source, speculation.draft_token_count, speculation.rule) == (
        "ngram",
        2,
        speculation_pb2.VERIFICATION_RULE_REJECTION_TOKEN,
    )


def test_a_constraint_is_text_or_a_file(gateway: Any, paceline: Any, tmp_path: Path) -> None:
    """A schema or a grammar may be a file's; a regular expression is what is written."""
    path = tmp_path / "form"
    path.write_text('{"type": "object"}')
    for flag, given, name, sent in (
        ("--json-schema", '{"type": "array"}', "json_schema", '{"type": "array"}'),
        ("--json-schema", str(path), "json_schema", '{"type": "object"}'),
        ("--grammar", str(path), "grammar", '{"type": "object"}'),
        ("--grammar", "start: " + "a" * 5000, "grammar", "start: " + "a" * 5000),
        ("--grammar", "\u4e00" * 100, "grammar", "\u4e00" * 100),
        ("--regex", str(path), "regex", str(path)),
    ):
        gateway.requests.clear()
        assert 0 == paceline("generate", "hi", flag, given).exit_code
        constraint = gateway.requests[0].sampling.constraint
        assert (name, sent) == (constraint.WhichOneof("form"), getattr(constraint, name))


def test_unset_options_are_unset(gateway: Any, paceline: Any) -> None:
    """What nobody asked for is left to the gateway, also 0 against unset."""
    paceline("generate", "hi")
    request = gateway.requests[0]
    assert not request.HasField("max_tokens")
    assert not request.HasField("seed")
    assert not request.HasField("sample_count")
    for name in ("temperature", "min_p", "repetition_penalty", "log_prob_count", "constraint"):
        assert not request.sampling.HasField(name)
    assert not request.sampling.HasField("prompt_log_prob_count")
    assert not request.speculation.HasField("draft_token_count")


@pytest.mark.parametrize(("given", "sent"), [("0", 0), ("7", 7)])
def test_zero_draft_tokens_are_asked_for(
    gateway: Any, paceline: Any, given: str, sent: int
) -> None:
    """0 is plain decoding and not the same as auto."""
    paceline("generate", "hi", "--num-draft-tokens", given)
    speculation = gateway.requests[0].speculation
    assert (speculation.HasField("draft_token_count"), speculation.draft_token_count) == (
        True,
        sent,
    )


@pytest.mark.parametrize(
    "flags",
    [
        ("--num-draft-tokens", "many"),
        ("--num-draft-tokens", "-1"),
        ("--seed", "-1"),
        ("--rule", "guess"),
        ("--temperature", "warm"),
        ("--logit-bias", "7"),
        ("--logit-bias", "7=much"),
        ("--logit-bias", "-1=2"),
        ("--logit-bias", "4294967296=2"),
        ("--logprobs", "2"),
        ("--prompt-logprobs", "2"),
        ("--n", "many"),
        ("--regex", "a", "--grammar", "start: b"),
        ("--no-such-flag",),
    ],
)
def test_wrong_usage_exits_with_2(gateway: Any, paceline: Any, flags: tuple[str, ...]) -> None:
    """Wrong usage is named and asks nothing of the gateway."""
    result = paceline("generate", "hi", *flags)
    assert (result.exit_code, gateway.requests) == (2, [])
    assert flags[0] in result.stderr


def test_error_status_exits_with_1(gateway: Any, paceline: Any) -> None:
    """A refusal is printed on standard error with its code, and nothing on standard output."""
    gateway.failure = grpc.StatusCode.NOT_FOUND
    result = paceline("generate", "hi", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "NOT_FOUND: because the test says so" in result.stderr


def test_no_gateway_exits_with_1(paceline: Any) -> None:
    """An address where nothing listens is an error status like any other."""
    result = paceline("generate", "hi", "--address", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "error: UNAVAILABLE" in result.stderr


def test_options_come_from_variables(
    gateway: Any, paceline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every option has a variable; a flag goes before it."""
    monkeypatch.setenv("PACELINE_GENERATE_MAX_TOKENS", "3")
    monkeypatch.setenv("PACELINE_GENERATE_TOP_K", "9")
    paceline("generate", "hi", "--top-k", "4")
    request = gateway.requests[0]
    assert (request.max_tokens, request.sampling.top_k) == (3, 4)
