"""The rules of the design that a reader of one file cannot see: purity, direction of imports, proof.

Everything is read from the syntax tree; nothing is imported, so that a forbidden import cannot hide behind
a condition or a function.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PURE = ("chain", "guard", "trace", "fold")

ALLOWED_MODULES = {
    "__future__",
    "base64",
    "binascii",
    "bisect",
    "collections",
    "contextlib",
    "cryptography",
    "nacl",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "enum",
    "functools",
    "hashlib",
    "heapq",
    "hmac",
    "itertools",
    "json",
    "math",
    "msgspec",
    "operator",
    "re",
    "string",
    "struct",
    "typing",
    "unicodedata",
    "uuid",
}
"""What pure code may import: values and computation. No time, random, secrets, os, sys, pathlib, logging,
socket, asyncio or database in it, and none of the modules that do I/O."""

MESSAGES = {
    "google.protobuf.message",
    "opentelemetry.proto.trace.v1.trace_pb2",
}
"""What pure code may import of protobuf: classes of messages and the error of reading one. They compute on
bytes in memory and do no I/O; no other module of these packages belongs here."""

FORBIDDEN_BUILT_INS = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}
"""Built-in functions that pure code does not call."""

FORBIDDEN_MEMBERS = {
    "now", "utcnow", "today", "uuid1", "uuid4", "getnode", "urandom", "generate", "generate_key",
}  # fmt: skip
"""Clocks and randomness that allowed modules offer all the same."""

MAY_IMPORT = {
    "app/chain": {"app.chain", "app.errors"},
    "app/trace": {"app.trace", "app.chain", "app.errors"},
    "app/guard": {"app.guard", "app.trace", "app.chain", "app.errors"},
    "app/fold": {
        "app.fold",
        "app.guard",
        "app.chain",
        "app.errors",
        "app.moment",
        "app.principal",
        "app.redaction.rules",
    },
}
"""What the pure packages may import of the project."""

MAY_NOT_IMPORT = {
    "app/audit": {"app.http", "app.console", "app.cli", "app.asgi", "app.client"},
    "app/verification": {
        "db",
        "app.audit",
        "app.ledger",
        "app.http",
        "app.console",
        "app.cli",
        "app.asgi",
        "app.client",
    },
    "app/ledger": {"app.audit", "app.http", "app.console", "app.cli", "app.asgi", "app.client"},
    "db": {
        "app.http",
        "app.console",
        "app.cli",
        "app.asgi",
        "app.client",
        "app.audit",
        "app.ledger",
        "app.fold",
        "app.guard",
        "app.trace",
    },
    "app/http": {"app.audit", "app.console", "app.cli", "app.asgi", "app.client"},
    "app/console": {"app.audit", "app.cli", "app.asgi", "app.client"},
    "app/client": {"db", "app.audit", "app.ledger", "app.http", "app.console", "app.cli", "app.asgi"},
}
"""Arrows that would point back."""

EXCEPTIONS = {
    # The guard for programs beside the database is a client by what it offers, a server by what it needs. It
    # imports the ledger in functions only, so that importing the client never needs the server's packages.
    "app/client/in_process.py": {"app.ledger"},
}
"""What one file alone may import all the same."""

IMPORTERS_OF_HTTP = ("app/asgi.py", "app/cli/", "app/http/", "app/console/")


def _files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it; ``from a import b`` counts as ``a.b``, too."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{_name(path)} imports relatively"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _below(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _offences_of_purity(tree: ast.Module) -> list[str]:
    """Clocks, randomness and I/O that the code reaches for."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_MEMBERS:
            found.append(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found += [alias.name for alias in node.names if alias.name in FORBIDDEN_MEMBERS]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found += [node.func.id] * (node.func.id in FORBIDDEN_BUILT_INS)
    return found


PURE_FILES = [path for package in PURE for path in _files(f"app/{package}")]


def test_the_pure_packages_are_there() -> None:
    assert {path.parent.name for path in PURE_FILES} >= {"chain"}


@pytest.mark.parametrize("path", PURE_FILES, ids=_name)
def test_pure_code_imports_only_what_computes(path: Path) -> None:
    modules = {module for module in _imports(path) if not _below(module, MESSAGES)}
    outside = {module.partition(".")[0] for module in modules} - {"app"}
    assert outside <= ALLOWED_MODULES


@pytest.mark.parametrize("path", PURE_FILES, ids=_name)
def test_pure_code_mentions_no_clock_randomness_or_io(path: Path) -> None:
    assert _offences_of_purity(_tree(path)) == []


@pytest.mark.parametrize(
    "source",
    [
        "datetime.datetime.now()",
        "from uuid import uuid4",
        "open('x')",
        "AESGCM.generate_key(256)",
        "print(1)",
    ],
)
def test_the_purity_check_finds_what_it_forbids(source: str) -> None:
    assert _offences_of_purity(ast.parse(source)) != []


@pytest.mark.parametrize("path", PURE_FILES, ids=_name)
def test_pure_code_imports_no_other_part_of_the_project(path: Path) -> None:
    own = {module for module in _imports(path) if _below(module, {"app", "db"}) and module != "app"}
    allowed = MAY_IMPORT["/".join(_name(path).split("/")[:2])]
    assert {module for module in own if not _below(module, allowed)} == set()


@pytest.mark.parametrize("folder", MAY_NOT_IMPORT)
def test_imports_point_in_one_direction(folder: str) -> None:
    wrong = {
        f"{_name(path)}: {module}"
        for path in _files(folder)
        for module in _imports(path)
        if _below(module, MAY_NOT_IMPORT[folder]) and not _below(module, EXCEPTIONS.get(_name(path), set()))
    }
    assert wrong == set()


def test_the_client_needs_nothing_of_the_server_to_be_imported() -> None:
    """Neither our packages for servers nor an agent framework, except in the adapter that is for it."""
    modules = [_name(path).removesuffix(".py").replace("/", ".") for path in _files("app/client")]
    light = [name for name in modules if ".adapters." not in name]
    program = f"""
import importlib, sys
for name in {light!r}:
    importlib.import_module(name.removesuffix(".__init__"))
heavy = {{"asyncpg", "sqlalchemy", "litestar", "langchain", "pydantic_ai", "agents", "mcp"}}
ours = {{name for name in sys.modules if name == "db" or name.startswith("app.ledger")}}
print(sorted(heavy & set(sys.modules) | ours))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


def test_only_the_outermost_code_imports_http() -> None:
    wrong = {
        f"{_name(path)}: {module}"
        for folder in ("app", "db", "alembic")
        for path in _files(folder)
        if not _name(path).startswith(IMPORTERS_OF_HTTP)
        for module in _imports(path)
        if _below(module, {"app.http"})
    }
    assert wrong == set()


def _reaches_for(path: Path, name: str) -> bool:
    """Whether a file takes this name from another module, by import or as an attribute."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == name)
        or (isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names))
        for node in ast.walk(_tree(path))
    )


def _callers(name: str) -> set[str]:
    """Files that call something of this name."""
    return {
        _name(path)
        for folder in ("app", "db", "alembic", "tests")
        for path in _files(folder)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id == name)
            or (isinstance(node.func, ast.Attribute) and node.func.attr == name)
        )
    }


def test_only_sealing_and_verifying_prove_a_record() -> None:
    users = {
        _name(path)
        for folder in ("app", "db", "alembic", "tests")
        for path in _files(folder)
        if _reaches_for(path, "_proven")
    }
    assert users == {"app/chain/link.py", "app/chain/verify.py"}


def test_a_verified_record_is_constructed_in_one_place() -> None:
    assert _callers("VerifiedRecord") == {"app/chain/record.py"}
