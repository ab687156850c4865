"""Writes what the chart repeats from elsewhere: settings' schema, README's table, dashboard.

The settings are those of the services' configurations, the table is that of values.yaml with its
comments. `python -m deploy.generate` writes all; with `--check` it only says whether they are
fresh, by its exit status.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.dashboard import dashboard
from draft_service.config import DraftConfig
from gateway.config import GatewayConfig
from paceline.serving.config import ServerConfig
from verify_service.config import VerifyConfig

CHART = Path(__file__).parent / "paceline"
CONFIGS: dict[str, type[ServerConfig]] = {
    "shared": ServerConfig,
    "gateway": GatewayConfig,
    "draft": DraftConfig,
    "verify": VerifyConfig,
}
# What the chart decides by itself, mostly because another object must agree with it.
OWN = {
    *("config", "host", "port", "metrics_port", "drain_timeout_s", "lame_duck_s", "log_format"),
    *("tls_certificate", "tls_key", "tls_ca", "health_port", "token_file"),
    *("tier_certificate", "tier_key", "tier_ca"),
    *("verify", "draft", "tokenizer_cache_dir", "cache_dir", "device", "model", "target", "source"),
}
KEY = re.compile(r"( *)([A-Za-z]\w*):(?: (.*))?")
BEGIN, END = "<!-- values: begin -->", "<!-- values: end -->"


def main(argv: list[str]) -> int:
    """Writes or checks the files; returns the exit status."""
    schema_path, readme_path = CHART / "values.schema.json", CHART / "README.md"
    readme = readme_path.read_text()
    before, _, rest = readme.partition(BEGIN)
    table = "\n".join(table_of((CHART / "values.yaml").read_text()))
    fresh = {
        schema_path: schema_with_settings(schema_path.read_text()),
        readme_path: f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}",
        CHART / "files" / "dashboard.json": json.dumps(dashboard(), indent=1) + "\n",
    }
    stale = [path for path, text in fresh.items() if text != path.read_text()]
    for path in stale:
        print(f"{path.name} is not what deploy/generate.py makes of the sources")
        if "--check" not in argv:
            path.write_text(fresh[path])
    return 1 if stale and "--check" in argv else 0


def schema_with_settings(text: str) -> str:
    """The values' schema with the settings of every service in it."""
    schema = json.loads(text)
    for name, config in CONFIGS.items():
        described = config.model_json_schema(ref_template="#/definitions/{model}")
        schema["definitions"] |= described.get("$defs", {})
        settings = described["properties"]
        schema["definitions"][f"{name}Settings"] = {
            "type": "object",
            "additionalProperties": False,
            "properties": {key: _plain(settings[key]) for key in settings if key not in OWN},
        }
    return json.dumps(schema, indent=2) + "\n"


def _plain(setting: dict[str, Any]) -> dict[str, Any]:
    """A setting's schema without what only pydantic reads."""
    return {key: setting[key] for key in sorted(setting) if key not in {"title", "default"}}


def table_of(values: str) -> Iterator[str]:
    """Rows for the keys of values.yaml: path, value, and the comment above it.

    Left out are keys that only hold others. Where a tier changes a default, that is what is said.
    """
    yield "| key | default | what it does |"
    yield "|---|---|---|"
    path: list[str] = []
    comment: list[str] = []
    for line in values.splitlines():
        if match := KEY.fullmatch(line):
            indent, key, value = len(match[1]), match[2], match[3] or ""
            path = [*path[: indent // 2], key]
            text = " ".join(comment)
            if value and not text and path[0] in CONFIGS:
                text = f"Instead of `{'.'.join(['defaults', *path[1:]])}`."
            if value or text:
                yield f"| `{'.'.join(path)}` | {f'`{value}`' if value else ''} | {text} |"
            comment = []
        elif line.strip().startswith("#"):
            comment.append(line.strip("# "))
        else:
            comment = []


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
