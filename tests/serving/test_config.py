"""Settings: where they come from, which goes first, and how a wrong one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field, ValidationError

from paceline.serving.config import ServerConfig, load


class RoomConfig(ServerConfig):
    """A service's own settings."""

    section: ClassVar[str] = "gateway"
    peers: tuple[str, ...] = Field(default=(), description="addresses of peers")


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    """A file with a table for two services."""
    path = tmp_path / "paceline.toml"
    path.write_text(
        '[gateway]\nport = 1\nmax_message_mib = 2\nlog_level = "error"\npeers = ["f:1", "f:2"]\n'
        "[verify]\nport = 9\n"
    )
    return path


def refused(capsys: pytest.CaptureFixture[str], *argv: str, **environ: str) -> list[str]:
    """The lines on stderr of a start that was refused."""
    with pytest.raises(SystemExit) as stop:
        load(RoomConfig, argv, environ)
    assert 2 == stop.value.code
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_defaults() -> None:
    """Without any source the defaults hold; the environment of the process is not read then."""
    config = load(RoomConfig, (), {})
    assert ("127.0.0.1", 0, 60.0, 16) == (
        config.host,
        config.port,
        config.drain_timeout_s,
        config.max_message_mib,
    )
    assert () == config.peers


def test_flag_before_environment_before_file_before_default(settings_file: Path) -> None:
    """The four sources, each winning over the ones after it."""
    config = load(
        RoomConfig,
        ["--config", str(settings_file), "--port", "3"],
        {"PACELINE_GATEWAY_PORT": "2", "PACELINE_GATEWAY_MAX_MESSAGE_MIB": "5"},
    )
    assert (3, 5, "error", 60.0) == (
        config.port,
        config.max_message_mib,
        config.log_level,
        config.drain_timeout_s,
    )


def test_file_named_by_variable(settings_file: Path) -> None:
    """PACELINE_CONFIG names the file for all services; each reads its own table."""
    config = load(RoomConfig, (), {"PACELINE_CONFIG": str(settings_file)})
    assert (1, ("f:1", "f:2")) == (config.port, config.peers)


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        (["--peers", "a:1,b:2"], {}),
        (["--peers", "a:1", "--peers", "b:2"], {}),
        ([], {"PACELINE_GATEWAY_PEERS": "a:1, b:2"}),
    ],
)
def test_lists(argv: list[str], environ: dict[str, str]) -> None:
    """A list is a flag given more than once, or values with commas between them."""
    assert ("a:1", "b:2") == load(RoomConfig, argv, environ).peers


@pytest.mark.parametrize(
    ("argv", "environ"), [(["--peers", ""], {}), ([], {"PACELINE_GATEWAY_PEERS": ""})]
)
def test_empty_list(argv: list[str], environ: dict[str, str]) -> None:
    """An empty text is an empty list, not a list of one empty address."""
    assert () == load(RoomConfig, argv, environ).peers


@pytest.mark.parametrize(
    ("argv", "expected"), [(["--reflection"], True), (["--no-reflection"], False)]
)
def test_switch(argv: list[str], expected: bool) -> None:
    """A switch needs no value, and a flag can turn off what a variable turned on."""
    assert expected is load(RoomConfig, argv, {"PACELINE_GATEWAY_REFLECTION": "1"}).reflection


def test_each_fault_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Every wrong value is named at once, by flag and variable, with what was given."""
    lines = refused(
        capsys, "--port", "65536", PACELINE_GATEWAY_DRAIN_TIMEOUT_S="-1", PACELINE_GATEWAY_BOGUS="1"
    )
    assert 3 == len(lines)
    assert "--port (PACELINE_GATEWAY_PORT)" in lines[0]
    assert "65536" in lines[0]
    assert "--drain-timeout-s (PACELINE_GATEWAY_DRAIN_TIMEOUT_S)" in lines[1]
    assert "PACELINE_GATEWAY_BOGUS" in lines[2]


def test_a_setting_without_default_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    """What is missing is named like what is wrong."""

    class TiedConfig(RoomConfig):
        host: str

    with pytest.raises(SystemExit) as stop:
        load(TiedConfig, (), {})
    assert 2 == stop.value.code
    assert "gateway: --host (PACELINE_GATEWAY_HOST): must be given\n" == capsys.readouterr().err


@pytest.mark.parametrize("value", ["nan", "inf", "x", ""])
def test_durations_are_finite_numbers(capsys: pytest.CaptureFixture[str], value: str) -> None:
    """A drain without end is not a setting."""
    (line,) = refused(capsys, "--drain-timeout-s", value)
    assert "--drain-timeout-s" in line


@pytest.mark.parametrize("argv", [["--bogus", "3"], ["--port"], ["--drain", "3"], ["extra"]])
def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    """Unknown and shortened flags are refused by name, without a page of usage."""
    (line,) = refused(capsys, *argv)
    assert argv[0] in line


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[gateway]\nbogus = 1\n", "bogus"),
        ("[gatway]\nport = 1\n", "[gatway]"),
        ("gateway = 1\n", "gateway must be a table"),
        ("[gateway\n", "line 1"),
        ('[gateway]\nport = "x"\n', "--port"),
        ('[gateway]\npeers = "a:1"\n', "--peers"),
    ],
)
def test_wrong_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, named: str
) -> None:
    """An unknown key or table, or what is not TOML, is named."""
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    (line,) = refused(capsys, "--config", str(path))
    assert named in line


def test_missing_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A file that is not there is not an empty file."""
    (line,) = refused(capsys, PACELINE_CONFIG=str(tmp_path / "none.toml"))
    assert "none.toml" in line


def test_help_shows_defaults_and_units(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` ends well and says what each setting means."""
    with pytest.raises(SystemExit) as stop:
        load(RoomConfig, ["--help"], {})
    assert 0 == stop.value.code
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "--drain-timeout-s float seconds that running sessions get to end (default: 60.0)" in text
    )
    assert "largest message in MiB (default: 16)" in text


def test_settings_do_not_change() -> None:
    """A loaded configuration is a value."""
    config = load(RoomConfig, (), {})
    with pytest.raises(ValidationError, match="frozen"):
        config.port = 5


def test_construction_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `load` looks around: a configuration made in code is what was passed."""
    monkeypatch.setenv("PORT", "7")
    monkeypatch.setenv("PACELINE_GATEWAY_PORT", "8")
    assert 0 == RoomConfig().port


def test_the_file_has_three_spellings(
    settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flag, the service's own variable, that of all services; a file names no other."""
    other = settings_file.with_name("other.toml")
    other.write_text("[gateway]\nport = 4\n")
    own = {"PACELINE_GATEWAY_CONFIG": str(other)}
    every = {"PACELINE_CONFIG": str(settings_file)}
    assert 1 == load(RoomConfig, (), every).port
    assert 4 == load(RoomConfig, (), {**every, **own}).port
    assert 1 == load(RoomConfig, ["--config", str(settings_file)], own).port
    other.write_text('[gateway]\nconfig = "more.toml"\n')
    (line,) = refused(capsys, **own)
    assert "a file names no other file" in line
