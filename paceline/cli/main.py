"""The command line: `paceline COMMAND`. Every command is imported when it is called.

Options come from flags, from variables (`PACELINE_COMMAND_OPTION`), or from the tables of a TOML
file (`--config`, one table per command), in this order.
"""

from __future__ import annotations

import importlib

import click

from paceline.cli.config_file import read_config

COMMANDS = {
    "ab": "Compares the arms of an experiment, from the logs.",
    "bench": "Measures plain against speculative decoding.",
    "chat": "Talks with the model.",
    "check": "Proves that speculation changes no output.",
    "demo": "Starts everything, asks one question, compares, stops.",
    "distill": "Makes a draft from a target.",
    "generate": "Generates from one prompt.",
    "plan": "Says whether speculation pays here, with which draft and which length.",
    "rounds": "Measures what a round costs outside the models.",
    "status": "Shows the replicas of both tiers.",
    "up": "Starts the services on this machine.",
}


class LazyGroup(click.Group):
    """Commands live in `paceline.cli.NAME`; none pays for the imports of another."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in order."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, imported now."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(
            importlib.import_module(f"paceline.cli.{cmd_name}"), cmd_name
        )
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={
        "auto_envvar_prefix": "PACELINE",
        "help_option_names": ["-h", "--help"],
        "show_default": True,
    },
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    envvar="PACELINE_CONFIG",
    is_eager=True,
    callback=read_config,
    help="TOML file: a table per command, and verify, draft, gateway for `up`.",
)
@click.version_option(package_name="paceline")
def main(config: str | None) -> None:
    """Lossless speculative decoding as a pair of gRPC services."""


if __name__ == "__main__":
    main()
