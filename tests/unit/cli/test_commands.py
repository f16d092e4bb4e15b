"""The command line itself: help, errors, showing a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.chain.keys import SigningKey
from app.chain.link import seal_all
from app.chain.record import Draft, export_line
from app.cli.demo import _BREAKS
from app.cli.demo_guarantees import GUARANTEES
from app.cli.main import _COMMANDS
from tests.support.cli import run_trails

SIGNER = SigningKey.from_raw(bytes(range(32)))


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """An export whose texts try everything on the terminal that shows them."""
    genesis = {"log_id": "a", "public_key": SIGNER.public.hex, "tenant": "t", "log_uuid": "u"}
    nasty = "x\r\n\x1b[31mFAKE\u0085\u2028\u202e\x9b2J[red]markup[/red]"
    drafts = [
        Draft("genesis", genesis, "operator"),
        Draft(
            "action_requested",
            {"action_id": "act-1", "tool": "d\u0435lete_file", "input": nasty, "cost": 1},
            nasty,
        ),
        Draft("event", {"big": 10**40}, "a"),
    ]
    file = tmp_path / "hostile.jsonl"
    records = seal_all(drafts, None, 0, SIGNER)
    file.write_text("".join(export_line(record) + "\n" for record in records), "utf-8")
    return file


def test_h21_records_cannot_steer_the_terminal(hostile: Path) -> None:
    shown = run_trails("show", hostile)
    assert shown.code == 0
    assert not {"\x1b", "\x9b", "\u0085", "\u2028", "\u202e", "\r"} & set(shown.out)
    assert "[red]markup[/red]" in shown.out
    assert str(10**40) in shown.out


def test_g19_a_look_alike_name_is_marked(hostile: Path) -> None:
    assert "LOOK-ALIKE NAME (mixes Cyrillic and Latin)" in run_trails("show", hostile).out


def test_h21_shown_as_json_the_values_are_unchanged(hostile: Path) -> None:
    shown = run_trails("show", hostile, "--json").out.splitlines()
    original = hostile.read_text("utf-8").split("\n")[:-1]
    assert [json.loads(line) for line in shown] == [json.loads(line) for line in original]
    assert not {"\x9b", "\u0085", "\u2028", "\u202e"} & set("".join(shown))


def test_show_takes_a_part(hostile: Path) -> None:
    shown = run_trails("show", hostile, "--after", "0", "--limit", "1", "--json").out.splitlines()
    assert [json.loads(line)["seq"] for line in shown] == [1]
    assert run_trails("show", hostile, "--after", "7").code == 1


def test_show_says_when_more_follows(hostile: Path) -> None:
    cut = run_trails("show", hostile, "--limit", "2", "--json")
    assert len(cut.out.splitlines()) == 2
    assert cut.err == f"more records follow: trails show {hostile} --after 1\n"
    assert run_trails("show", hostile, "--limit", "3").err == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "TRAILS_WORKER",
            "trails: TRAILS_WORKER is no setting and is ignored; did you mean TRAILS_WORKERS?\n",
        ),
        ("TRAILS_XQZ", "trails: TRAILS_XQZ is no setting and is ignored; trails serve --help lists all\n"),
        ("TRAILS_WORKERS", ""),
        ("TRAILS_TEST_POSTGRES_BIN", ""),
        ("TRAILS_BENCH_FLOOR_URL", ""),
    ],
)
def test_a_variable_that_is_no_setting_is_said(hostile: Path, name: str, said: str) -> None:
    result = run_trails("show", hostile, env={name: "2"})
    assert (result.code, result.err) == (0, said)


def test_commands_that_only_look_leave_a_folder_new(tmp_path: Path) -> None:
    env = {"TRAILS_DATA_DIR": str(tmp_path / "data"), "TRAILS_BIND": "127.0.0.1:0"}
    for arguments in (["serve"], ["migrate"], ["verify"], ["export", "scout"], ["show", "scout"]):
        assert run_trails(*arguments, env=env).code != 0
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "command", [["verify"], ["export", "scout"], ["show", "scout"], ["serve"], ["migrate"]]
)
def test_an_embedded_server_that_does_not_run_is_said(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "database.url").write_text("postgresql://postgres:pw@127.0.0.1:1/trails")
    env = {"TRAILS_DATA_DIR": str(tmp_path), "TRAILS_BIND": "127.0.0.1:0"}
    result = run_trails(*command, env=env)
    assert f"the embedded PostgreSQL of {tmp_path} is not running" in result.out + result.err
    assert "trails run" in result.out + result.err


@pytest.mark.parametrize("name", _COMMANDS)
def test_help_teaches_by_example(name: str) -> None:
    shown = run_trails(name, "--help")
    assert shown.code == 0
    assert "Example" in shown.out


def test_an_unknown_command_is_a_matter_of_usage() -> None:
    assert run_trails("verfy").code == 2
    assert run_trails().code == 2


@pytest.mark.parametrize("agent_id", ["../../etc/passwd", "a/b", "", "a" * 65, ".hidden"])
def test_an_agent_id_never_leaves_the_folder(agent_id: str) -> None:
    assert run_trails("export", agent_id).code == 2


def test_without_a_database_a_command_says_what_to_do(tmp_path: Path) -> None:
    env = {"TRAILS_DATA_DIR": str(tmp_path)}
    for arguments in (["export", "scout"], ["show", "scout"], ["migrate"], ["serve"]):
        result = run_trails(*arguments, env={**env, "TRAILS_BIND": "127.0.0.1:0"})
        assert result.code == 1, arguments
        assert "TRAILS_DATABASE_URL" in result.err
    assert run_trails("verify", env=env).code == 5


def test_every_guarantee_of_the_demo_can_be_broken() -> None:
    assert set(_BREAKS) == {item.name for item in GUARANTEES}
    assert all(item.says for item in GUARANTEES)
