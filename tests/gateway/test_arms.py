"""Which generation belongs to which arm, and what that changes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from gateway.arms import CONTROL, Arm, assign, unit
from gateway.commit import Ending
from gateway.config import GatewayConfig
from gateway.cost_length import CostLength
from gateway.draft_length import FixedLength, WindowLength
from gateway.generation import choose_policy
from gateway.request import Generation
from gateway.round_times import RoundTimes
from paceline.records import SamplingParams, SessionSpec, VerificationRule
from paceline.serving.config import load

ARMS = {"a": Arm(share=0.2, draft_source="ngram"), "b": Arm(share=0.3, draft_length="fixed:0")}


def generation(request_id: str = "1", tenant: str = "", **fields: Any) -> Generation:
    """A generation that names neither source nor length, unless said otherwise."""
    spec = SessionSpec(
        (1,),
        1,
        SamplingParams(),
        VerificationRule.COUPLED,
        0,
        cache_domain=tenant,
        request_id=request_id,
    )
    defaults = {"draft_source": "", "num_draft_tokens": None, "max_draft_tokens": None}
    return Generation(spec, Ending(8), **{**defaults, **fields})


def config(*argv: str, **environ: str) -> GatewayConfig:
    """Settings of a gateway."""
    return load(GatewayConfig, ["--verify", "a:1", *argv], environ)


def test_shares() -> None:
    """Of 20,000 generations each arm gets its share; 5 standard deviations are allowed."""
    counts = Counter(assign(generation(str(i)), ARMS).arm for i in range(20_000))
    for arm, share in (("a", 0.2), ("b", 0.3), (CONTROL, 0.5)):
        deviation = (20_000 * share * (1 - share)) ** 0.5
        assert abs(counts[arm] - 20_000 * share) < 5 * deviation, arm
    assert 20_000 == counts.total()


def test_a_tenant_stays_in_its_arm() -> None:
    """Whatever its requests are called."""
    for tenant in map(str, range(20)):
        arms = {assign(generation(str(i), tenant), ARMS).arm for i in range(20)}
        assert 1 == len(arms)
        assert 1 == len({unit(generation(str(i), tenant)) for i in range(20)})


def test_an_arm_changes_what_it_says() -> None:
    """A source, a length, or nothing at all."""
    by_arm = {g.arm: g for g in (assign(generation(str(i)), ARMS) for i in range(100))}
    assert ("ngram", "") == (by_arm["a"].draft_source, by_arm["a"].draft_length)
    assert ("", "fixed:0") == (by_arm["b"].draft_source, by_arm["b"].draft_length)
    assert ("", "") == (by_arm[CONTROL].draft_source, by_arm[CONTROL].draft_length)


@pytest.mark.parametrize("fields", [{"draft_source": "ngram"}, {"num_draft_tokens": 0}])
def test_a_client_that_chose_is_in_no_arm(fields: dict[str, Any]) -> None:
    """It gets what it asked for, and is compared with none."""
    for i in range(50):
        chosen = generation(str(i), **fields)
        assert chosen is assign(chosen, ARMS)


def test_without_arms_there_is_no_experiment() -> None:
    """Not even a control."""
    assert "" == assign(generation(), {}).arm


@pytest.mark.parametrize(
    ("service", "arm", "expected"),
    [("window", "fixed:3", 3), ("fixed:5", "window", WindowLength.START), ("fixed:5", "", 5)],
)
def test_the_length_of_an_arm_goes_before_the_service(
    service: str, arm: str, expected: int
) -> None:
    """An arm without one runs with the service's."""
    policy = choose_policy(
        generation(draft_length=arm), config("--draft-length", service), RoundTimes
    )
    assert expected == policy.num_draft_tokens
    assert isinstance(policy, WindowLength if expected == WindowLength.START else FixedLength)


@pytest.mark.parametrize(("service", "arm"), [("cost", ""), ("window", "cost")])
def test_costs_are_weighed_where_asked_for(service: str, arm: str) -> None:
    """By the service or by an arm; a client's pin goes before both."""
    settings = config("--draft-length", service)
    weighed = choose_policy(generation(draft_length=arm), settings, RoundTimes)
    pinned = replace(generation(draft_length=arm), num_draft_tokens=3)
    assert isinstance(weighed, CostLength)
    assert 3 == choose_policy(pinned, settings, RoundTimes).num_draft_tokens


def test_settings_by_flag_variable_and_file(tmp_path: Any) -> None:
    """The same arms in three spellings."""
    arms = {"a": {"share": 0.2, "draft_source": "ngram"}}
    path = tmp_path / "paceline.toml"
    path.write_text('[gateway.arms.a]\nshare = 0.2\ndraft_source = "ngram"\n')
    expected = {"a": Arm(share=0.2, draft_source="ngram")}
    assert expected == config("--arms", json.dumps(arms)).arms
    assert expected == config(PACELINE_GATEWAY_ARMS=json.dumps(arms)).arms
    assert expected == config("--config", str(path)).arms
    assert {} == config().arms


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ('{"a": {"share": 0.6}, "b": {"share": 0.5}}', "more than 1"),
        ('{"control": {"share": 0.1}}', "taken"),
        ('{"a": {"share": 0}}', "greater than 0"),
        ('{"a": {"share": 0.1, "length": "fixed:0"}}', "Extra inputs"),
        ('{"a": {"share": 0.1, "draft_length": "long"}}', "pattern"),
        ("{", "JSON"),
    ],
)
def test_wrong_arms_fail_at_start(
    capsys: pytest.CaptureFixture[str], arms: str, message: str
) -> None:
    """With one line that says what is wrong."""
    with pytest.raises(SystemExit) as caught:
        config(PACELINE_GATEWAY_ARMS=arms)
    assert 2 == caught.value.code
    assert message in capsys.readouterr().err
