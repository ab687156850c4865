"""The config file of the command line: TOML with a table per command, checked by name.

The same file may hold the services' own tables (`verify`, `draft`, `gateway`). What is in them is
not known here: `up` hands them on as the variables that the services read.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from paceline.serving.config import SECTIONS, find_table

SERVICE_TABLES = frozenset(SECTIONS)


def read_config(context: click.Context, option: click.Parameter, path: str | None) -> str | None:
    """Makes the file's tables the defaults of the commands' options; a click callback.

    Raises:
        click.BadParameter: the file is not TOML, or names a command or option that is not there.
    """
    if path is None:
        return None
    try:
        tables = tomllib.loads(Path(path).read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path} is not TOML: {error}") from None
    for section in SECTIONS:
        try:
            find_table(tables, section, Path(path))
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    context.obj = service_variables(tables)
    own = {name: table for name, table in tables.items() if name not in SERVICE_TABLES}
    for name, table in own.items():
        _check(context, path, name, table)
    context.default_map = {
        name: {key.replace("-", "_"): value for key, value in table.items()}
        for name, table in own.items()
    }
    return path


def service_variables(tables: Mapping[str, Any]) -> dict[str, str]:
    """The settings in the services' tables as PACELINE_SERVICE_SETTING variables."""
    return {
        f"PACELINE_{name}_{key}".replace("-", "_").upper(): _spell(value)
        for name in sorted(SERVICE_TABLES & tables.keys())
        for key, value in tables[name].items()
    }


def _spell(value: Any) -> str:
    """A TOML value as the services spell it in a variable: commas in a list, JSON for a table."""
    if isinstance(value, dict):
        return json.dumps(value)
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _check(context: click.Context, path: str, name: str, table: object) -> None:
    """Refuses a table or key that no command would read."""
    group = context.command
    command = group.get_command(context, name) if isinstance(group, click.Group) else None
    if command is None or not isinstance(table, dict):
        raise click.BadParameter(f"{path}: no command is called {name!r}")
    known = {parameter.name for parameter in command.params}
    for key in table:
        if key.replace("-", "_") not in known:
            raise click.BadParameter(f"{path}: [{name}] has no option {key!r}")
