"""The import law, the budgets of size and the vocabulary, held over every file of the source."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SERVICES = ("draft_service", "verify_service", "gateway")
GENERATED = "paceline.v1"
MAX_LINES = 300
MAX_LOOP_LINES = 150
BANNED_FILES = {"utils", "helpers", "common", "misc", "manager"}
# One word, one meaning: these are other people's words for ours, or mean nothing.
BANNED_NAMES = {
    "gamma",
    "candidate",
    "candidates",
    "approx",
    "page",
    "pages",
    "crop",
} | BANNED_FILES
BANNED_PROSE = re.compile(r"\b(gamma|candidates?|approx|crop|cropped)\b")
ASSISTANT = re.compile(r"assistant")
ASSISTANT_FILES = {
    "gateway/tokenizer.py": "a role that every chat template knows",
    "paceline/distill/prompts.py": "a role that every chat template knows",
    "paceline/cli/chat.py": "the role of the model's turns in a chat",
    "paceline/bench/peers.py": "the keyword of transformers' assisted generation",
}


def _source_files() -> list[Path]:
    folders = [ROOT / "paceline", *(ROOT / name for name in SERVICES)]
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    return [file for file in files if not _module(file).startswith(GENERATED)]


def _module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.AST) -> Iterator[str]:
    """Every module named by an import, wherever in the file it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide who depends on whom"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_in(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


FOREIGN_SIGNATURES = {
    "attend": "called by transformers' attention interface",
    "settings_customise_sources": "called by pydantic-settings",
}
FILES = _source_files()
TREES = {_module(file): ast.parse(file.read_text(), str(file)) for file in FILES}
IMPORTS = {module: set(_imports(tree)) for module, tree in TREES.items()}
each_file = pytest.mark.parametrize("file", FILES, ids=_module)


def _offenders(importers: tuple[str, ...], banned: tuple[str, ...]) -> list[str]:
    """Imports that go from one set of packages to another."""
    return [
        f"{module} imports {name}"
        for module, names in IMPORTS.items()
        if _is_in(module, *importers)
        for name in sorted(names)
        if _is_in(name, *banned)
    ]


# Who may import whom -----------------------------------------------------------------------------


def test_the_law_has_something_to_judge() -> None:
    """Every part of the source is found; an empty list would pass everything."""
    tops = {module.split(".")[0] for module in TREES}
    assert {"paceline", *SERVICES} == tops
    assert {"paceline.engine", "paceline.serving", "paceline.cli"} <= TREES.keys()


@pytest.mark.parametrize("service", SERVICES)
def test_services_never_import_one_another(service: str) -> None:
    """Each tier deploys on its own."""
    others = tuple(name for name in SERVICES if name != service)
    assert _offenders((service,), others) == []


def test_the_shared_package_imports_no_service() -> None:
    """Dependencies go from the services to what they share."""
    assert _offenders(("paceline",), SERVICES) == []


def test_the_engine_knows_no_wire() -> None:
    """The torch side has no gRPC, no protobuf, no generated code and no serving."""
    banned = ("grpc", "grpc_health", "google", GENERATED, "paceline.wire", "paceline.serving")
    assert _offenders(("paceline.engine", "paceline.distill"), banned) == []


def test_serving_knows_no_torch() -> None:
    """The gRPC side can be installed without the torch side."""
    banned = ("torch", "transformers", "tokenizers", "paceline.engine")
    assert _offenders(("paceline.serving",), banned) == []


def test_the_gateway_knows_no_torch() -> None:
    """The gateway and the clients hold no model and no engine."""
    banned = ("torch", "safetensors", "accelerate", "gguf", "paceline.engine")
    assert _offenders(("gateway", "paceline.cli"), banned) == []


def test_only_the_gateway_tokenizer_knows_tokenizers() -> None:
    """One file turns text into ids."""
    found = _offenders(("gateway", "paceline.cli"), ("transformers", "tokenizers"))
    assert {"gateway.tokenizer"} == {line.split()[0] for line in found}


@pytest.mark.parametrize("module", ["paceline.records", "paceline.errors"])
def test_the_nouns_need_nothing(module: str) -> None:
    """Records and errors import the standard library alone."""
    foreign = {name.split(".")[0] for name in IMPORTS[module]} - set(sys.stdlib_module_names)
    assert set() == foreign


@pytest.mark.parametrize(
    "module",
    [
        "gateway.round",
        "gateway.commit",
        "gateway.draft_length",
        "gateway.cost_length",
        "gateway.round_times",
    ],
)
def test_the_loop_sees_records_only(module: str) -> None:
    """No message, stream or law reaches the loop."""
    assert _offenders((module,), ("grpc", "google", GENERATED, "paceline.wire")) == []


@pytest.mark.parametrize("folder", ["draft_service.drafters", "verify_service.verifier"])
def test_the_tiers_see_records_only(folder: str) -> None:
    """Drafters and the verifier know no protobuf."""
    assert _offenders((folder,), ("grpc", "google", GENERATED, "paceline.wire")) == []


def test_only_one_place_reads_the_environment() -> None:
    """Settings come from one reader; the command line only hands variables to its children."""
    readers = {
        module
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"})
        or (isinstance(node, ast.alias) and node.name in {"environ", "getenv"})
    }
    children = {"paceline.cli.process", "paceline.cli.stack"}
    assert {"paceline.serving.config"} == readers - children


def test_there_are_no_cycles() -> None:
    """Modules can be read in some order, each after what it needs."""
    graph = {
        module: {name for name in names if name in TREES and name != module}
        for module, names in IMPORTS.items()
    }
    while ready := {module for module, needs in graph.items() if not needs & graph.keys()}:
        for module in ready:
            del graph[module]
    assert graph == {}


# Shape -------------------------------------------------------------------------------------------


@each_file
def test_module_says_what_it_is(file: Path) -> None:
    """Every module opens with a docstring."""
    assert ast.get_docstring(TREES[_module(file)])


@each_file
def test_file_is_short(file: Path) -> None:
    """A file fits in the head."""
    assert len(file.read_text().splitlines()) <= MAX_LINES


def test_the_loop_is_short() -> None:
    """The loop can be read aloud."""
    assert len((ROOT / "gateway" / "round.py").read_text().splitlines()) <= MAX_LOOP_LINES


@each_file
def test_functions_are_short(file: Path) -> None:
    """No function is longer than 50 lines or takes more than 6 parameters.

    Exempt are commands, and functions whose signature is another package's interface.
    """
    for node in ast.walk(TREES[_module(file)]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 50, node.name
            assert node.name in FOREIGN_SIGNATURES or _num_parameters(node) <= 6, node.name


def _num_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Parameters that a caller writes; none of a command, whose parameters are its options."""
    if any(
        "click" in ast.unparse(one) or "option" in ast.unparse(one) for one in node.decorator_list
    ):
        return 0
    names = [argument.arg for argument in node.args.args + node.args.kwonlyargs]
    return len([name for name in names if name not in {"self", "cls"}])


@each_file
def test_module_has_no_state_that_changes(file: Path) -> None:
    """No function reaches for a global to rebind it."""
    assert [n for n in ast.walk(TREES[_module(file)]) if isinstance(n, ast.Global)] == []


@each_file
def test_importing_does_nothing(file: Path) -> None:
    """A module's top level defines; it calls nothing for its effect, except to start a program."""
    calls = [
        ast.unparse(node)
        for node in TREES[_module(file)].body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ]
    assert calls == []


@each_file
def test_file_name_says_something(file: Path) -> None:
    """Names for whatever is left over are not used."""
    assert file.stem not in BANNED_FILES


# Words -------------------------------------------------------------------------------------------


@each_file
def test_names_have_one_meaning(file: Path) -> None:
    """What is defined here keeps to the vocabulary."""
    words = {word for name in _names(TREES[_module(file)]) for word in _words(name)}
    assert words & BANNED_NAMES == set()


@each_file
def test_prose_has_one_meaning(file: Path) -> None:
    """So do comments and docstrings."""
    assert BANNED_PROSE.findall(file.read_text().lower()) == []


@each_file
def test_assistant_is_only_a_role(file: Path) -> None:
    """The draft model is called the draft; `assistant` is a chat role."""
    if str(file.relative_to(ROOT)) not in ASSISTANT_FILES:
        assert None is ASSISTANT.search(file.read_text().lower())


def _names(tree: ast.AST) -> Iterator[str]:
    """Every name that a file defines: functions, classes, parameters, variables, fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def _words(name: str) -> list[str]:
    """The words of a snake_case or CamelCase name, lower case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")
