"""``trails verify FILE``: a snapshot that is signed and false is found without the database (case C24)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.chain.link import seal_all
from app.chain.record import SNAPSHOT, Draft, VerifiedRecord
from app.fold.fold import GUARD, ChainId, Fold
from app.principal import ADMINISTRATION
from tests.support import cli
from tests.support.cli import Result, faults, run_trails
from tests.support.guard_chain import AGENT, KEY, START
from tests.support.jobs import shared_files
from tests.support.snapshots import CHAIN_ID, Payload, SnapshotChain, exported, refunded

PINNED = ("--public-key", KEY.public.hex)
REASON = "the snapshot is not the fold of the records before it"


def chain(*, false: int | None = None) -> SnapshotChain:
    """Three snapshots with work between them; the one of number ``false`` is not what the records come to."""
    made = SnapshotChain()
    for number in range(3):
        made.work(3)
        made.snapshot(refunded if number == false else lambda payload: payload)
    made.work(2)
    return made


def snapshots(records: list[VerifiedRecord]) -> list[int]:
    return [record.seq for record in records if record.kind == SNAPSHOT]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "export.jsonl"


def verify(file: Path, *arguments: object) -> Result:
    """With the key pinned, in three forms, from a pipe, and shared by workers, which must agree."""
    found = cli.verify(file, *PINNED, *arguments)
    piped = cli.verify("-", *PINNED, *arguments, stdin=file.read_bytes())
    assert (piped.code, faults(piped)) == (found.code, faults(found))
    for size in (1, 1_500, 6_000, 1_000_000):
        with shared_files(size):
            shared = run_trails("verify", file, *PINNED, *arguments, "--jobs", 2, "--json")
        assert (shared.code, shared.out) == (found.code, found.out)
    return found


def test_a_sound_one_passes(file: Path) -> None:
    file.write_bytes(chain().export())
    assert verify(file).code == 0


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_false_one_is_named_wherever_it_stands(file: Path, number: int) -> None:
    made = chain(false=number)
    file.write_bytes(made.export())
    found = verify(file)
    assert found.code == 1
    assert faults(found) == [(snapshots(made.records)[number], "fold")]
    text = run_trails("verify", file, *PINNED).out
    assert f"seq {snapshots(made.records)[number]}: fold: {REASON}" in text


@pytest.mark.parametrize(
    "change",
    [
        lambda payload: {**payload, "genesis_key": "11" * 32},
        lambda payload: {**payload, "log_uuid": "00000000-0000-0000-0000-000000000000"},
        lambda payload: {**payload, "agent_id": "agent-2"},
        lambda payload: {**payload, "state": None},
    ],
)
def test_whatever_else_one_says_wrong_is_named_too(file: Path, change: Any) -> None:
    made = SnapshotChain()
    made.work(2)
    seq = made.snapshot(change).seq
    file.write_bytes(made.export())
    found = verify(file)
    assert found.code == 1
    assert [where for where, _ in faults(found)] == [seq]


def test_one_of_a_later_form_is_passed_over(file: Path) -> None:
    made = SnapshotChain()
    made.work(1)
    made.snapshot(lambda _: {"form": 2, "whatever": "it says"})
    made.work(1)
    made.snapshot()
    file.write_bytes(made.export())
    assert verify(file).code == 0


def test_a_chain_that_names_no_uuid_has_no_snapshot(file: Path) -> None:
    """Nothing says that a snapshot is of this chain, so one in it is not."""
    genesis = Draft("genesis", {"log_id": AGENT, "public_key": KEY.public.hex}, AGENT)
    fold, first = Fold(CHAIN_ID), seal_all([genesis], None, START, KEY)
    fold.advance(first[0], KEY.public)
    snapshot = seal_all([fold.snapshot()], first[-1].head, START, KEY)
    file.write_bytes(exported([*first, *snapshot]))
    assert faults(verify(file)) == [(1, "format")]


@pytest.mark.parametrize("first", [1, 7, 20])
def test_a_page_from_the_middle_of_a_chain_gives_no_false_alarm(file: Path, first: int) -> None:
    """What stands before it is not there: that is told once, as ever, and nothing of its snapshots."""
    for made in (chain(), chain(false=2)):
        assert first < snapshots(made.records)[1]
        file.write_bytes(made.export(first))
        assert faults(verify(file)) == [(0, "order")]


def test_behind_a_record_that_was_taken_out_nothing_is_said_of_one(file: Path) -> None:
    lines = chain().export().splitlines(keepends=True)
    del lines[4]
    file.write_bytes(b"".join(lines))
    assert faults(verify(file)) == [(4, "order")]


def test_behind_a_kind_that_is_not_known_nothing_vouches_for_one(file: Path) -> None:
    made = chain()
    later = seal_all([Draft("unheard-of", {}, AGENT)], made.records[-1].head, made.now_us, KEY)
    file.write_bytes(exported([*made.records, *later]))
    assert verify(file).code == 0
    false = Draft(SNAPSHOT, refunded(_payload(made.records)), GUARD)
    behind = seal_all([false], later[-1].head, made.now_us, KEY)
    file.write_bytes(exported([*made.records, *later, *behind]))
    found = verify(file)
    assert (found.code, faults(found)) == (1, [(later[0].seq, "kind")])


def _payload(records: list[VerifiedRecord]) -> Payload:
    return next(record.payload for record in records if record.kind == SNAPSHOT)


# --- marks -----------------------------------------------------------------------------------------------


def only(result: Result) -> dict[str, Any]:
    [found] = result.json["chains"]
    return dict(found)


@pytest.mark.parametrize(("false", "code"), [(None, 8), (2, 1)])
def test_t11_one_behind_a_mark_is_compared_with_all_before_it(
    file: Path, tmp_path: Path, false: int | None, code: int
) -> None:
    made, mark = chain(false=false), tmp_path / "mark"
    end = snapshots(made.records)[1] + 3
    file.write_bytes(exported(made.records[:end]))
    assert run_trails("verify", file, *PINNED, "--mark", mark).code == 0
    file.write_bytes(made.export())
    found = verify(file, "--resume", mark)
    assert found.code == code
    assert only(found)["mark"]["seq"] == end - 1
    assert faults(found) == ([] if false is None else [(snapshots(made.records)[false], "fold")])


def test_t11_a_mark_is_not_set_in_the_middle_of_an_act(file: Path, tmp_path: Path) -> None:
    made, mark = chain(), tmp_path / "mark"
    end = 1 + next(r.seq for r in made.records[10:] if r.kind == "action_requested")
    file.write_bytes(exported(made.records[:end]))
    assert run_trails("verify", file, *PINNED, "--mark", mark).code == 0
    assert json.loads(mark.read_bytes().splitlines()[0])["chains"] == []
    file.write_bytes(made.export())
    assert verify(file, "--resume", mark).code == 0  # all of it was read


def test_t11_a_mark_that_says_nothing_of_snapshots_is_not_gone_on_from(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of before this was compared: the whole chain is read."""
    made, mark = chain(), tmp_path / "mark"
    file.write_bytes(made.export())
    with monkeypatch.context() as patch:
        patch.setattr("app.fold.compare.SnapshotCheck.said", lambda _: None)
        assert run_trails("verify", file, *PINNED, "--mark", mark).code == 0
    assert verify(file, "--resume", mark).code == 0


# --- administration --------------------------------------------------------------------------------------


def administration(standing: dict[str, Any] | None = None) -> list[VerifiedRecord]:
    """A chain of administrative acts with a snapshot of them, or one that says another standing."""
    chain_id = ChainId(CHAIN_ID.tenant_id, ADMINISTRATION, CHAIN_ID.log_uuid, guarded=False)
    named: Payload = {
        "log_id": ADMINISTRATION,
        "log_uuid": str(chain_id.log_uuid),
        "public_key": KEY.public.hex,
    }
    rules = {"version": 1, "patterns": ["card_numbers"], "paths": ["$.secret"]}
    acts: list[Payload] = [{"act": "redaction_set", "rules": rules}, {"act": "tenant_suspended"}]
    drafts = [Draft("genesis", named, "service"), *(Draft("admin", act, "root") for act in acts)]
    records, fold = seal_all(drafts, None, START, KEY), Fold(chain_id)
    for record in records:
        fold.advance(record, KEY.public)
    true = fold.snapshot()
    payload = true.payload if standing is None else {**true.payload, "standing": standing}
    later = [Draft(SNAPSHOT, payload, GUARD), Draft("admin", {"act": "tenant_resumed"}, "root")]
    return [*records, *seal_all(later, records[-1].head, START, KEY)]


REVIVED = {"keys": {"mine": None}, "names": {}, "epochs": {}, "suspended": True, "redaction": None}


def test_a_standing_that_is_not_the_fold_is_named(file: Path) -> None:
    file.write_bytes(exported(administration()))
    assert verify(file).code == 0
    file.write_bytes(exported(administration(REVIVED)))
    found = verify(file)
    assert (found.code, faults(found)) == (1, [(3, "fold")])


def test_t11_a_chain_of_administration_is_read_whole(file: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    file.write_bytes(exported(administration()[:3]))
    assert run_trails("verify", file, *PINNED, "--mark", mark).code == 0
    file.write_bytes(exported(administration()))
    assert verify(file, "--resume", mark).code == 0
    file.write_bytes(exported(administration(REVIVED)))
    assert faults(verify(file, "--resume", mark)) == [(3, "fold")]


# --- the client's installation ---------------------------------------------------------------------------


def server_packages() -> set[str]:
    """What the packages of the server are imported as."""
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    [listed] = re.findall(r"^server = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    named = re.findall(r'^ *"([\w-]+)', listed, re.MULTILINE)
    imported = {
        "google-re2": "re2",
        "markdown-it-py": "markdown_it",
        "opentelemetry-proto": "opentelemetry.proto",
    }
    return {imported.get(name, name.replace("-", "_")) for name in named}


@pytest.mark.parametrize("records", [chain().records, administration()])
def test_comparing_needs_no_package_of_the_server(file: Path, records: list[VerifiedRecord]) -> None:
    file.write_bytes(exported(records))
    program = (
        "import sys\n"
        f"for name in {sorted(server_packages())!r}: sys.modules[name] = None\n"
        "from app.cli.exits import run_command\n"
        "from app.cli.main import trails\n"
        f"code = run_command(trails, ['verify', {str(file)!r}, *{PINNED!r}])\n"
        "print(*sorted(n for n in sys.modules if n == 'db' or n.startswith(('db.', 'app.ledger'))))\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == ""  # nothing of the database, nothing of the service
