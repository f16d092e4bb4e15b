"""``trails export``: everything, views, bundles, and going on after an interruption (T09, T15, H26)."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from app.cli import export_chain
from db import sql_logins
from tests.integration.cli.conftest import TRAIL, Trail
from tests.integration.cli.test_on_record import ON_RECORD, acts
from tests.support.cli import Result, run_trails, verify
from tests.support.small_disk import SmallDisk, small_disk

ROOT = Path(__file__).parents[3]


def done(result: Result) -> Result:
    assert result.code == 0, result.err
    return result


def key_of(trail: Trail) -> str:
    return str(trail.fetch("SELECT public_key FROM trails.signing_keys")[0][0])


def records_of(trail: Trail) -> int:
    return int(trail.fetch(f"SELECT count(*) FROM {TRAIL}")[0][0])


def test_t09_all_chains_as_one_file_that_says_that_it_is_whole(trail: Trail) -> None:
    out = trail.folder / "all.jsonl"
    made = done(trail.trails("export", "--all", "--out", out, "--json"))
    found = verify(out, "--public-key", key_of(trail))
    assert (found.code, found.json["checked"]) == (0, made.json["rows"])
    assert made.json["rows"] == records_of(trail) - 1  # the record of its end came after it
    assert (made.json["complete_chains"], made.json["on_record"], made.json["signed"]) == (True, True, True)
    assert f"this export is {ON_RECORD}" in made.err
    assert [act["rows"] for act in acts(trail, "exported")] == [made.json["rows"]]
    assert trail.verify().code == 0


def test_a_bundle_for_an_auditor(trail: Trail) -> None:
    out = trail.folder / "audit.zip"
    made = done(trail.trails("export", "--bundle", out, "scout", "other"))
    assert "of 2 chains in" in made.err
    found = verify(out, "--public-key", key_of(trail))
    assert (found.code, found.json["checked"]) == (0, 19)
    assert [act["format"] for act in acts(trail, "exported")] == ["bundle"]
    again = trail.trails("export", "--bundle", out)
    assert (again.code, "is there already" in again.err) == (1, True)
    made = done(trail.trails("export", "--bundle", out, "scout", "--force"))
    assert "of 1 chain in" in made.err


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_view_in_every_form(trail: Trail, form: str) -> None:
    out = trail.folder / "actions"
    made = done(
        trail.trails("export", "--view", "actions", "--format", form, "--agent", "scout", "--out", out)
    )
    assert "proves nothing" in made.err
    raw = out.read_bytes()
    rows = {
        "jsonl": lambda: len(raw.splitlines()) - 2,
        "csv": lambda: len(list(csv.reader(io.StringIO(raw.decode())))) - 2,
        "parquet": lambda: pyarrow.parquet.read_table(io.BytesIO(raw)).num_rows,
    }[form]()
    assert rows == 4


def test_t09_a_part_of_a_chain_says_that_it_is_one(trail: Trail) -> None:
    [[since]] = trail.fetch(
        "SELECT to_char(max(created_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
        f" FROM {TRAIL} WHERE agent_id = 'scout'"
    )
    out = trail.folder / "part.jsonl"
    made = done(trail.trails("export", "scout", "--since", since, "--out", out, "--json"))
    assert "no complete chain" in made.err
    assert (made.json["complete_chains"], made.json["filter"]["since"]) == (False, since)
    assert verify(out, "--public-key", key_of(trail)).code == 3


def test_a_login_that_only_reads_exports_with_an_unsigned_end(trail: Trail) -> None:
    count = records_of(trail)
    login = sql_logins.SqlLogin(sql_logins.new_login(), "auditor", trail.fetch("SELECT now()")[0][0])
    tenant_id = trail.fetch("SELECT tenant_id FROM trails.tenants")[0][0]
    sql_logins.create(trail.database.admin_url, login, tenant_id, "a password of sixteen")
    try:
        user = f"{login.login}:a%20password%20of%20sixteen"
        host = trail.database.app_url.partition("@")[2]
        env = {"TRAILS_DATABASE_URL": f"postgresql://{user}@{host}"}
        out, bundle = trail.folder / "all.jsonl", trail.folder / "all.zip"
        made = done(run_trails("export", "--all", "--out", out, "--json", env=env))
        assert (made.json["signed"], made.json["on_record"], made.json["rows"]) == (False, False, count)
        assert "not on record: no master key" in made.err
        done(run_trails("export", "--bundle", bundle, env=env))
        done(run_trails("export", "--view", "actions", "--out", trail.folder / "rows", env=env))
        refused = run_trails("export", "--all", "--tenant", "default", "--out", trail.folder / "x", env=env)
        assert (refused.code, "leave --tenant out" in refused.err) == (1, True)
    finally:
        sql_logins.drop(trail.database.admin_url, login.login)
    for file in (out, bundle):
        found = verify(file, "--public-key", key_of(trail))
        assert (found.code, found.json["checked"]) == (0, count)
        assert found.json["completeness"].startswith("complete up to its own last record")
    assert acts(trail, "exported") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to export"),
        (["--all", "scout"], "exclude each other"),
        (["--all", "--resume"], "one AGENT alone"),
        (["--all", "--head-file", "head"], "one AGENT alone"),
        (["--bundle", "x.zip", "--format", "csv"], "leave --out and --format out"),
        (["--all", "--out", "-", "--json"], "standard output"),
        (["--all", "--since", "yesterday"], "must be a day"),
        (["--view", "secrets"], "secrets"),
        (["../x"], "an agent's id"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: list[str], said: str) -> None:
    refused = run_trails("export", *arguments)
    assert (refused.code, said in refused.err) == (2, True), refused.err


def test_nothing_is_left_of_an_export_that_cannot_be_had(trail: Trail) -> None:
    before = set(trail.folder.iterdir())
    for arguments in (
        ["nobody"],
        ["nobody", "scout"],
        ["scout", "--since", "2026-01-02", "--until", "2026-01-01"],
    ):
        refused = trail.trails("export", *arguments, "--out", trail.folder / "file")
        assert refused.code == 1, arguments
    assert set(trail.folder.iterdir()) == before
    assert acts(trail, "export_begun") == []


# --- going on ------------------------------------------------------------------------------------------


def interrupted(trail: Trail, out: Path, monkeypatch: pytest.MonkeyPatch, *, at: int) -> None:
    """An export of ``scout`` that ends when so many records are written."""
    with monkeypatch.context() as patch:
        real = export_chain.dump_chain

        async def dump(*arguments: Any, **options: Any) -> Any:
            count = 0
            async for record in real(*arguments, **options):
                if count == at:
                    raise KeyboardInterrupt
                count += 1
                yield record

        patch.setattr(export_chain, "dump_chain", dump)
        assert trail.trails("export", "scout", "--out", out).code == 130


def test_an_interrupted_export_goes_on_where_it_was(trail: Trail, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trail.trails("export", "scout", "--out", "-").out.encode()
    out, part = trail.folder / "scout.jsonl", trail.folder / "scout.jsonl.part"
    for torn in (b"", b'{"actor":"scout","kind":"action_re'):
        interrupted(trail, out, monkeypatch, at=6)
        assert not out.exists()
        assert part.read_bytes() == b"".join(whole.splitlines(keepends=True)[:6])
        part.write_bytes(part.read_bytes() + torn)
        refused = trail.trails("export", "scout", "--out", out)
        assert (refused.code, "--resume" in refused.err) == (1, True)
        resumed = done(trail.trails("export", "scout", "--out", out, "--resume", "--json"))
        assert out.read_bytes() == whole
        assert not part.exists()
        assert "gone on behind seq 5" in resumed.err
        assert (resumed.json["length"], resumed.json["rows"]) == (15, 15)
        out.unlink()
    done(trail.trails("export", "scout", "--out", out, "--resume"))  # there is nothing to go on with
    assert out.read_bytes() == whole


@pytest.fixture
def nearly_full() -> Iterator[SmallDisk]:
    """A disk with room for some records, and not for all of them."""
    with small_disk(1) as disk:
        disk.fill()
        ballast = disk.path / "ballast"
        os.truncate(ballast, ballast.stat().st_size - 8_192)
        yield disk


def test_what_a_full_disk_has_of_a_chain_is_gone_on_with(trail: Trail, nearly_full: SmallDisk) -> None:
    whole = trail.trails("export", "scout", "--out", "-").out.encode()
    out = nearly_full.path / "scout.jsonl"
    refused = trail.trails("export", "scout", "--out", out)
    assert refused.code == 1
    assert f"{out} cannot be written: No space left on device" in refused.err
    assert "--resume" in refused.err
    assert not out.exists()
    assert trail.trails("export", "scout", "--out", out, "--resume").code == 1
    assert 0 < len((nearly_full.path / "scout.jsonl.part").read_bytes()) < len(whole)
    nearly_full.clear()
    done(trail.trails("export", "scout", "--out", out, "--resume"))
    assert out.read_bytes() == whole


def test_a_full_disk_leaves_nothing_of_what_says_that_it_is_whole(
    trail: Trail, nearly_full: SmallDisk
) -> None:
    out = nearly_full.path / "all.jsonl"
    before = set(nearly_full.path.iterdir())
    refused = trail.trails("export", "--all", "--out", out)
    assert refused.code == 1
    assert f"{out} cannot be written: No space left on device" in refused.err
    assert set(nearly_full.path.iterdir()) == before


def test_a_full_disk_behind_a_pipe_is_told_of(trail: Trail) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "app.cli", "export", "--all", "--out", "-"]
        env = {**os.environ, **trail.env}
        told = subprocess.run(command, cwd=ROOT, env=env, stdout=full, stderr=subprocess.PIPE, check=False)
    said = told.stderr.decode()
    assert told.returncode == 1
    assert "standard output cannot be written: No space left on device" in said
    assert "Traceback" not in said
    assert "Exception ignored" not in said


def test_what_does_not_fit_the_chain_is_not_gone_on_with(
    trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, part = trail.folder / "scout.jsonl", trail.folder / "scout.jsonl.part"
    other = trail.trails("export", "other", "--out", "-").out.encode()
    interrupted(trail, out, monkeypatch, at=6)
    kept = part.read_bytes()
    for content, said in (
        (kept.replace(b'"tool":"search"', b'"tool":"sEarch"', 1), "does not verify"),
        (b"".join(kept.splitlines(keepends=True)[1:]), "does not verify"),
        (other, "another record at seq"),
    ):
        part.write_bytes(content)
        refused = trail.trails("export", "scout", "--out", out, "--resume")
        assert (refused.code, said in refused.err) == (1, True), refused.err
        assert part.read_bytes() == content
        assert not out.exists()
    done(trail.trails("export", "scout", "--out", out, "--force"))
    assert verify(out, "--public-key", key_of(trail)).code == 0


def test_the_json_summary_of_a_chain_has_its_head(trail: Trail) -> None:
    out = trail.folder / "scout.jsonl"
    made = done(trail.trails("export", "scout", "--out", out, "--json")).json
    assert f"{made['head']['seq']}:{made['head']['hash']}" == trail.head()
    assert (made["file"], made["complete_chains"], made["on_record"]) == (str(out), True, True)
    assert json.dumps(made)
