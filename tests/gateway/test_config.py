"""The gateway's settings."""

from __future__ import annotations

import pytest

from gateway.config import GatewayConfig
from paceline.serving.config import load


def test_replicas_may_be_given_several_times() -> None:
    """Flags repeat, the variable separates by commas."""
    flags = load(GatewayConfig, ["--verify", "a:1", "--verify", "b:2", "--draft", "c:3"], {})
    assert (("a:1", "b:2"), ("c:3",)) == (flags.verify, flags.draft)
    variables = load(GatewayConfig, [], {"PACELINE_GATEWAY_VERIFY": "a:1, b:2"})
    assert (("a:1", "b:2"), ()) == (variables.verify, variables.draft)


@pytest.mark.parametrize("rule", ["rejection-block", "rejection-token", "coupled"])
def test_every_rule_can_be_the_default(rule: str) -> None:
    """What a request may name, an operator may choose for those that name none."""
    config = load(GatewayConfig, ["--verify", "a:1", "--default-rule", rule], {})
    assert rule == config.default_rule


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ([], "--verify"),
        (["--verify", "nowhere"], "--verify"),
        (["--verify", "a:port"], "--verify"),
        (["--verify", "a:1", "--draft", "b"], "--draft"),
        (["--verify", "a:1", "--draft-length", "sometimes"], "--draft-length"),
        (["--verify", "a:1", "--draft-length", "fixed:"], "--draft-length"),
        (["--verify", "a:1", "--max-draft-tokens", "65"], "--max-draft-tokens"),
        (["--verify", "a:1", "--draft-stall-s", "0"], "--draft-stall-s"),
        (["--verify", "a:1", "--default-rule", "lossy"], "--default-rule"),
        (["--verify", "a:1", "--max-generations", "0"], "--max-generations"),
    ],
)
def test_wrong_values_end_the_start(
    argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2 and one line that names the flag."""
    with pytest.raises(SystemExit) as ended:
        load(GatewayConfig, argv, {})
    assert 2 == ended.value.code
    assert named in capsys.readouterr().err
