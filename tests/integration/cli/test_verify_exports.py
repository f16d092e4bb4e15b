"""``trails verify`` on exports that say what they hold, whole, cut and altered (cases H26, C32, T09)."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.chain.canonical import canonical
from app.chain.keys import SigningKey
from app.chain.link import seal_all
from app.chain.record import Draft, export_line
from app.chain.statement import read_statement, signed_statement, statement_hash, statement_text
from app.ledger import Ledger
from app.ledger.export.wanted import Format, Wanted
from app.moment import to_microseconds
from app.principal import Permission, Principal, Role, grant
from db.pool import create_pool
from db.schema import DEFAULT_TENANT_ID
from tests.integration.cli.conftest import TRAIL, Trail
from tests.support.cli import Result, faults, run_trails, verify
from tests.support.jobs import shared_files
from tests.support.ledgers import MASTER_KEY

NODE = shutil.which("node")
ROOT = Path(__file__).parents[3]
VERIFIER = ROOT / "tests" / "verifiers" / "verify.mjs"


def export(trail: Trail, wanted: Wanted) -> bytes:
    """The bytes of an export by the service's ledger."""

    async def run() -> bytes:
        async with await create_pool(trail.database.app_url, max_size=4) as pool:
            ledger = await Ledger.open(pool, master_key=MASTER_KEY)
            asking = grant(Principal(DEFAULT_TENANT_ID, Role.AUDITOR, "auditor"), Permission.EXPORT)
            async with ledger.export(asking, wanted) as exported:
                data = b"".join([piece async for piece in exported.pieces])
            await ledger.close()
            return data

    return asyncio.run(run())


def key_of(trail: Trail) -> str:
    return str(trail.fetch("SELECT public_key FROM trails.signing_keys")[0][0])


@pytest.fixture
def check(trail: Trail, tmp_path: Path) -> Callable[..., Result]:
    """Writes bytes into a file and verifies it with the tenant's key: as a file, shared, and from a pipe."""
    key = key_of(trail)

    def run(data: bytes, *arguments: object) -> Result:
        path = tmp_path / "export"
        path.write_bytes(data)
        found = verify(path, "--public-key", key, *arguments)
        with shared_files():
            shared = run_trails("verify", path, "--public-key", key, *arguments, "--jobs", 3, "--json")
        assert (shared.code, shared.json) == (found.code, found.json)
        piped = verify("-", "--public-key", key, *arguments, stdin=data)
        assert (piped.code, piped.json["checked"]) == (found.code, found.json["checked"])
        return found

    return run


def verdicts(result: Result) -> set[str]:
    return {chain["verdict"] for chain in result.json["chains"]}


def notes(result: Result) -> str:
    return " | ".join(str(chain["note"]) for chain in result.json["chains"])


# --- JSON lines ------------------------------------------------------------------------------------------


def test_a_whole_export_of_many_chains_verifies(trail: Trail, check: Callable[..., Result]) -> None:
    found = check(export(trail, Wanted()))
    assert found.code == 0, found.out
    assert [chain["agent_id"] for chain in found.json["chains"]] == ["_administration", "other", "scout"]
    assert found.json["completeness"].startswith("complete as of the signed export of 2")
    assert check(export(trail, Wanted(agents=("scout",))), "--checkpoint", trail.head()).code == 0


def test_without_a_pinned_key_it_is_self_declared(trail: Trail, tmp_path: Path) -> None:
    path = tmp_path / "export"
    for form in (Format.JSONL, Format.BUNDLE):
        path.write_bytes(export(trail, Wanted(format=form)))
        found = verify(path)
        assert found.code == 6
        assert f"by the word of key {key_of(trail)} alone" in found.json["completeness"]
        assert found.json["completeness"].startswith("complete as of the signed ")


def test_h26_an_export_cut_at_any_line_is_incomplete(trail: Trail, check: Callable[..., Result]) -> None:
    """Also where the last line that is there is whole, or the line of a chain's end."""
    lines = export(trail, Wanted()).splitlines(keepends=True)
    for count in range(1, len(lines)):
        found = check(b"".join(lines[:count]))
        assert found.code == 3, (count, found.out)
    assert "broke off" in notes(found)


def test_h26_c32_an_export_cut_within_a_line_is_incomplete(
    trail: Trail, check: Callable[..., Result]
) -> None:
    data = export(trail, Wanted(agents=("other",)))
    statement = data.rindex(b'{"form"')
    ends = data.rindex(b'{"chain"')
    for at in (2, 5, 200, 700, ends - 1, ends + 1, ends + 30, statement - 1, statement + 1, statement + 40):
        assert check(data[:at]).code == 3, at
    for at in range(statement + 50, len(data) - 2, 97):
        assert check(data[:at]).code == 3, at
    assert check(data[:-1]).code == 0  # its last line feed alone


def test_an_altered_export_is_tampered(trail: Trail, check: Callable[..., Result]) -> None:
    data = export(trail, Wanted())
    lines = data.splitlines(keepends=True)
    changed = {
        "a record": data.replace(b'"tool":"search"', b'"tool":"sear\xc3\xa7h"', 1),
        "the first line": data.replace(b'"complete_chains":true', b'"complete_chains":false', 1),
        "a chain's count": data.replace(b'"records":15', b'"records":14', 1),
        "the last line": data.replace(b'"trailer":{"bytes":', b'"trailer":{"bytes":1', 1),
        "two lines swapped": b"".join([*lines[:3], lines[4], lines[3], *lines[5:]]),
        "a line behind": data + lines[1],
        "a byte order mark": b"\xef\xbb\xbf" + data,
        "carriage returns": data.replace(b"\n", b"\r\n"),
    }
    for what, altered in changed.items():
        assert altered != data, what
        assert check(altered).code == 1, what


def test_a_chain_taken_out_of_an_export_is_found(trail: Trail, check: Callable[..., Result]) -> None:
    lines = export(trail, Wanted()).splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if line.startswith(b'{"chain"')]
    without = b"".join([*lines[: ends[0] + 1], *lines[ends[1] + 1 :]])
    assert check(without).code == 1


MALLORY = SigningKey.from_raw(bytes(range(32)))


def signed_by_mallory(about: str, says: dict[str, Any]) -> bytes:
    text = statement_text(about, says, MALLORY.public.hex)
    return signed_statement(text, MALLORY.sign(bytes.fromhex(statement_hash(text)))).encode() + b"\n"


def chain_of_mallory() -> tuple[bytes, dict[str, Any]]:
    """The export lines of a sound chain that begins with another key, and what a file says of it."""
    said = {"log_id": "mallory", "log_uuid": "0" * 8 + "-0000-4000-8000-" + "0" * 12}
    genesis = Draft("genesis", {**said, "public_key": MALLORY.public.hex}, "mallory")
    sealed = seal_all([genesis, Draft("event", {"data": "x"}, "mallory")], None, 0, MALLORY)
    content = b"".join(export_line(record).encode() + b"\n" for record in sealed)
    head = sealed[-1].head
    told = {"agent_id": "mallory", "log_uuid": said["log_uuid"], "records": 2}
    return content, {**told, "first_seq": 0, "last_seq": head.seq, "head_hash": head.hash}


def cut(lines: list[bytes], told: dict[str, Any]) -> tuple[list[bytes], dict[str, Any]]:
    """A chain without its last three records, and what a file would say of it."""
    kept = lines[:-3]
    head = json.loads(kept[-1])
    return kept, {**told, "records": len(kept), "last_seq": head["seq"], "head_hash": head["hash"]}


def cut_and_signed_by_mallory(trail: Trail) -> bytes:
    """An export of scout whose tail was cut, with a chain of Mallory's, who signs that it is all."""
    [first, *lines, ended, last] = export(trail, Wanted(agents=("scout",))).splitlines(keepends=True)
    kept, told = cut(lines, json.loads(ended)["chain"])
    content, of_mallory = chain_of_mallory()
    ends = [canonical({"chain": one}).encode() + b"\n" for one in (told, of_mallory)]
    data = b"".join([first, *kept, ends[0], content, ends[1]])
    says = read_statement(last.decode().removesuffix("\n"), "trailer").says
    rows = len(kept) + 2
    sums = {"rows": rows, "chains": 2, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return data + signed_by_mallory("trailer", {**says, **sums})


def test_an_end_signed_by_somebody_else_is_told(trail: Trail, check: Callable[..., Result]) -> None:
    data = export(trail, Wanted())
    at = data.rindex(b'{"form"')
    says = read_statement(data[at:-1].decode(), "trailer").says
    found = check(data[:at] + signed_by_mallory("trailer", says))
    assert found.code == 7
    assert MALLORY.public.hex in notes(found)


def test_a_chain_that_somebody_added_vouches_for_no_other(trail: Trail, check: Callable[..., Result]) -> None:
    """Whoever cuts a chain and adds one of his own may sign the end with that one's key."""
    data = cut_and_signed_by_mallory(trail)
    assert check(data).code == 7
    found = check(data, "--agent", "scout")
    assert found.code == 7
    assert "no chain that begins with a pinned key hands over to it" in notes(found)


def test_without_a_pinned_key_a_statement_vouches_for_chains_of_its_signer_alone(
    trail: Trail, tmp_path: Path
) -> None:
    path = tmp_path / "export"
    path.write_bytes(cut_and_signed_by_mallory(trail))
    found = verify(path)
    assert found.code == 6
    assert found.json["completeness"].startswith("complete up to its own last record")
    by_name = {chain["agent_id"]: chain for chain in found.json["chains"]}
    assert by_name["scout"]["completeness"].startswith("complete up to its own last record")
    assert "nothing tells that its tail was not cut" in by_name["scout"]["note"]
    assert MALLORY.public.hex in by_name["scout"]["note"]
    assert f"by the word of key {MALLORY.public.hex} alone" in by_name["mallory"]["completeness"]
    assert by_name["mallory"]["note"] is None


def test_t09_a_filtered_export_is_sound_and_no_complete_chain(
    trail: Trail, check: Callable[..., Result]
) -> None:
    """Both ends of the range: the first moment is in it, the last one is not."""
    times = [
        row[0]
        for row in trail.fetch(
            "SELECT DISTINCT created_at FROM trails.agent_audit_trails WHERE agent_id = 'scout' ORDER BY 1"
        )
    ]
    since, until = times[2], times[-1]
    wanted = Wanted(agents=("scout",), since_us=to_microseconds(since), until_us=to_microseconds(until))
    data = export(trail, wanted)
    [[count]] = trail.fetch(
        "SELECT count(*) FROM trails.agent_audit_trails"
        " WHERE agent_id = 'scout' AND created_at >= %s AND created_at < %s",
        since,
        until,
    )
    found = check(data)
    assert found.code == 3
    assert found.json["checked"] == count > 0
    assert "no complete chain" in notes(found)
    assert b"no complete chain" in data.splitlines()[0]
    assert b"no complete chain" in data.splitlines()[-1]
    assert check(data.replace(b'"tool":"search"', b'"tool":"sEarch"', 1)).code == 1
    lines = data.splitlines(keepends=True)
    assert check(b"".join([*lines[:3], *lines[4:]])).code == 1  # one record less in the middle
    later = to_microseconds(until) + 1
    everything = export(trail, Wanted(agents=("scout",), since_us=to_microseconds(since), until_us=later))
    assert check(everything).json["checked"] > count
    assert check(export(trail, Wanted(agents=("scout",), since_us=later))).code == 4


def test_rows_of_a_view_are_a_copy(trail: Trail, check: Callable[..., Result]) -> None:
    for form in (Format.JSONL, Format.CSV):
        data = export(trail, Wanted(view="actions", format=form))
        found = check(data)
        assert found.code == 5
        assert "no evidence" in notes(found)
        assert check(data[: len(data) // 2]).code == 3
        assert check(data.replace(b"search", b"sEarch", 1)).code == 1
    parquet = check(export(trail, Wanted(view="actions", format=Format.PARQUET)))
    assert (parquet.code, "Parquet: no evidence" in notes(parquet)) == (5, True)


@pytest.mark.parametrize(
    "tampering",
    [
        f"DELETE FROM {TRAIL} WHERE agent_id = 'scout' AND seq = 5",
        f"UPDATE {TRAIL} SET signature = repeat('0', 128) WHERE agent_id = 'scout' AND seq = 5",
        f"""ALTER TABLE {TRAIL} DROP CONSTRAINT trail_pkey;
        INSERT INTO {TRAIL} (tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at,
                             prev_hash, hash, signature, key_id, signed_text)
        SELECT tenant_id, agent_id, log_uuid, seq, kind, actor, session_id, created_at, prev_hash,
               repeat('0', 64), signature, key_id, signed_text
          FROM {TRAIL} WHERE agent_id = 'scout' AND seq = 5""",
    ],
)
def test_what_was_tampered_with_is_exported_as_it_stands(
    trail: Trail, check: Callable[..., Result], tampering: str
) -> None:
    trail.tamper(tampering, drop_checks=True)
    for form in (Format.JSONL, Format.BUNDLE):
        found = check(export(trail, Wanted(format=form)))
        assert found.code == 1
        [count] = trail.fetch(f"SELECT count(*) FROM {TRAIL} WHERE agent_id = 'scout'")[0]
        assert {c["agent_id"]: c["checked"] for c in found.json["chains"]}["scout"] == count


@pytest.mark.parametrize("forged", [None, "fold", "kind"])
@pytest.mark.parametrize("form", [Format.JSONL, Format.BUNDLE])
def test_c24_a_false_snapshot_that_is_signed_is_found_offline_as_in_the_database(
    trail: Trail, check: Callable[..., Result], form: Format, forged: str | None
) -> None:
    trail.take_snapshots(forged)
    found, in_database = check(export(trail, Wanted(format=form))), trail.verify()
    assert [fault for _, fault in faults(found)] == ([forged] if forged else [])
    assert found.code == in_database.code == (1 if forged else 0)
    assert said_of(found) == said_of(in_database)
    assert check(export(trail, Wanted(format=form, agents=("other",)))).code == 0


def said_of(result: Result) -> list[object]:
    return [(chain["agent_id"], chain["verdict"], chain["faults"]) for chain in result.json["chains"]]


def test_a_part_of_a_chain_with_snapshots_gives_no_false_alarm(
    trail: Trail, check: Callable[..., Result]
) -> None:
    trail.take_snapshots()
    times = [row[0] for row in trail.fetch(f"SELECT created_at FROM {TRAIL} WHERE agent_id = 'scout'")]
    middle = to_microseconds(sorted(times)[len(times) // 2])
    for wanted in (Wanted(since_us=middle), Wanted(until_us=middle)):
        data = export(trail, wanted)
        assert b'"kind":"snapshot"' in data
        found = check(data)
        assert (found.code, faults(found)) == (3, [])


# --- bundles -----------------------------------------------------------------------------------------------


def repacked(data: bytes, change: Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]) -> bytes:
    """The bundle with its members changed."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in change(members):
            archive.writestr(name, content)
    return made.getvalue()


@pytest.fixture
def bundle(trail: Trail) -> bytes:
    return export(trail, Wanted(format=Format.BUNDLE))


def test_a_bundle_verifies_offline(trail: Trail, bundle: bytes, check: Callable[..., Result]) -> None:
    found = check(bundle)
    assert found.code == 0, found.out
    assert (
        found.json["checked"]
        == 15
        + 4
        + len(trail.fetch("SELECT FROM trails.agent_audit_trails WHERE agent_id = '_administration'"))
        - 1
    )
    assert found.json["completeness"].startswith("complete as of the signed bundle of 2")
    assert check(repacked(bundle, lambda members: members)).code == 0
    assert check(bundle, "--agent", "scout").json["checked"] == 15
    assert check(bundle, "--agent", "nobody").code == 4


def test_a_bundle_has_everything_that_verifying_takes(trail: Trail, bundle: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        archive.extractall(tmp_path)
    assert [name for name in names if "/" not in name] == [
        "README.txt",
        "heads.txt",
        "keys.json",
        "manifest.json",
    ]
    files = sorted((tmp_path / "records").iterdir())
    assert verify(*files, "--public-key", key_of(trail), "--heads", tmp_path / "heads.txt").code == 0


def bundle_cut_and_signed_by_mallory(bundle: bytes) -> bytes:
    """A bundle in which scout's tail was cut, with a chain of Mallory's, who signs that it is all."""

    def change(members: Members) -> Members:
        [*others, (name, manifest)] = members
        says = read_statement(manifest.decode().removesuffix("\n"), "manifest").says
        told: list[Any] = says["members"]
        made = []
        for entry, (member, data) in zip(told, others, strict=True):
            content, entry_now = data, entry
            if "scout" in member:
                lines, entry_now = cut(data.splitlines(keepends=True), entry)
                content = b"".join(lines)
            made.append((member, content, entry_now))
        content, of_mallory = chain_of_mallory()
        made.insert(-2, (f"records/mallory.{of_mallory['log_uuid']}.jsonl", content, of_mallory))
        entries = [
            {**entry, "name": member, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for member, data, entry in made
        ]
        end = signed_by_mallory("manifest", {**says, "members": entries})
        return [*((member, data) for member, data, _ in made), (name, end)]

    return repacked(bundle, change)


def test_a_chain_that_somebody_added_to_a_bundle_vouches_for_no_other(
    bundle: bytes, check: Callable[..., Result], tmp_path: Path
) -> None:
    data = bundle_cut_and_signed_by_mallory(bundle)
    assert check(data).code == 7
    found = check(data, "--agent", "scout")
    assert found.code == 7
    assert "no chain that begins with a pinned key hands over to it" in notes(found)
    found = verify(tmp_path / "export", "--agent", "scout")
    assert found.code == 6
    assert found.json["completeness"].startswith("complete up to its own last record")
    assert "nothing tells that its tail was not cut" in notes(found)


async def test_a_key_that_a_chain_hands_over_to_may_sign(trail: Trail, tmp_path: Path) -> None:
    """The first key is pinned, the tenant's key was changed: what the new one signs is vouched for."""
    key, path = key_of(trail), tmp_path / "export"
    async with await create_pool(trail.database.app_url, max_size=4) as pool:
        ledger = await Ledger.open(pool, master_key=MASTER_KEY)
        ledger._keystore.settle_secs = 0.0
        later = await ledger.administration.rotate_signing(DEFAULT_TENANT_ID, "root")
        handed = [one async for one in ledger.administration.hand_over(DEFAULT_TENANT_ID, later)]
        assert {one.problem for one in handed} == {None}
        await ledger.close()
    for form in (Format.JSONL, Format.BUNDLE):
        for agents in (None, ("scout",)):
            path.write_bytes(await asyncio.to_thread(export, trail, Wanted(format=form, agents=agents)))
            found = await asyncio.to_thread(verify, path, "--public-key", key)
            assert found.code == 0, found.out
            assert found.json["completeness"].startswith("complete as of the signed ")
            assert "word" not in found.json["completeness"]


def test_several_processes_verify_a_bundle_and_one_that_is_killed_is_no_verdict(
    trail: Trail, bundle: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "audit.zip"
    path.write_bytes(bundle)
    for lot, code in (("bundle._verify_lot", 0), ("dying", 5)):
        script = IN_PROCESSES.format(lot=lot)
        command = [sys.executable, "-c", script, "verify", str(path), "--public-key", key_of(trail)]
        done = subprocess.run(
            [*command, "--jobs", "2"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == code, done.stdout + done.stderr
    assert "a process that verified a part of it ended before it was done" in done.stdout


IN_PROCESSES = """
import sys
from app.verification import bundle, files
from app.cli.main import main
from tests.support.jobs import dying
files.LONG_BYTES = 0
bundle._verify_lot = {lot}
sys.exit(main())
"""
"""``trails``, which shares every bundle."""


def test_h26_a_bundle_that_is_cut_is_incomplete(bundle: bytes, check: Callable[..., Result]) -> None:
    for at in [3, *range(10, len(bundle) - 1, len(bundle) // 12), len(bundle) - 1, len(bundle) - 23]:
        assert check(bundle[:at]).code == 3, at


Members = list[tuple[str, bytes]]


def _without(name: str) -> Callable[[Members], Members]:
    return lambda members: [member for member in members if not member[0].startswith(name)]


def _changed(name: str, old: bytes, new: bytes) -> Callable[[Members], Members]:
    def change(members: Members) -> Members:
        assert any(old in content for found, content in members if found.startswith(name))
        return [
            (found, content.replace(old, new, 1) if found.startswith(name) else content)
            for found, content in members
        ]

    return change


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_without("records/scout"), 3),
        (_without("keys.json"), 3),
        (_without("heads.txt"), 3),
        (_without("manifest.json"), 3),
        (_changed("records/scout", b'"tool":"search"', b'"tool":"sEarch"'), 1),
        (_changed("records/scout", b"\n", b"\r\n"), 1),
        (_changed("keys.json", b'"key_id"', b'"kEy_id"'), 1),
        (_changed("heads.txt", b"0", b"1"), 1),
        (_changed("README.txt", b"trails verify", b"trails trust"), 1),
        (_changed("manifest.json", b'"records":15', b'"records":14'), 1),
        (lambda members: [members[1], members[0], *members[2:]], 1),
        (lambda members: [*members[:-1], ("more.txt", b""), members[-1]], 1),
        (lambda members: [*members, members[0]], 1),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_bundle_that_was_altered_is_found(
    bundle: bytes, check: Callable[..., Result], change: Any, code: int
) -> None:
    found = check(repacked(bundle, change))
    assert found.code == code, found.out


def test_what_lies_beside_the_members_of_a_bundle_is_found(
    bundle: bytes, check: Callable[..., Result]
) -> None:
    """One program reads a ZIP file from its end, another from its front: both shall see the same."""
    altered = repacked(bundle, _changed("records/scout", b'"tool":"search"', b'"tool":"sEarch"'))
    hidden = bundle.index(b"PK\x01\x02")  # before the directory, which is moved with its end
    for data in (altered + bundle, bundle + b"A" * 100, bundle[:hidden] + b"\0" * 30 + bundle[hidden:]):
        found = check(data)
        assert found.code == 1, found.out
        assert found.json["verdict"] == "tampered"


def test_a_member_that_unpacks_without_an_end_is_given_up(
    bundle: bytes, check: Callable[..., Result]
) -> None:
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        name = next(name for name in archive.namelist() if "scout" in name)
        said = len(archive.read(name))
    made = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(bundle)) as archive,
        zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as to,
    ):
        for each in archive.namelist():
            more = (b"\n" * 50_000_000) if each == name else b""
            to.writestr(each, archive.read(each) + more)
    assert said < 50_000_000
    found = check(made.getvalue())
    assert found.code == 1
    assert "was changed" in notes(found)


def test_a_flipped_bit_anywhere_in_a_bundle_is_found(bundle: bytes, check: Callable[..., Result]) -> None:
    """Of ZIP's own fields some mean nothing; what was exported never changes unseen."""
    for at in range(0, len(bundle), max(1, len(bundle) // 60)):
        damaged = bytearray(bundle)
        damaged[at] ^= 0x10
        found = check(bytes(damaged))
        if found.code == 0:
            with (
                zipfile.ZipFile(io.BytesIO(bytes(damaged))) as archive,
                zipfile.ZipFile(io.BytesIO(bundle)) as intact,
            ):
                assert [archive.read(n) for n in archive.namelist()] == [
                    intact.read(n) for n in intact.namelist()
                ]
        assert found.code in {0, 1, 3, 5}, (at, found.out)


def test_h26_a_head_kept_elsewhere_tells_an_older_bundle(trail: Trail, check: Callable[..., Result]) -> None:
    data = export(trail, Wanted(format=Format.BUNDLE, agents=("scout",)))
    seq, digest = trail.head().split(":")
    heads = trail.folder / "heads.txt"
    heads.write_text(f"{int(seq) + 1}:{digest} scout\n")
    assert check(data, "--heads", heads).code == 3
    heads.write_text(f"{seq}:{digest[::-1]} scout\n")
    assert check(data, "--heads", heads).code == 1
    heads.write_text(f"{seq}:{digest} scout\n")
    found = check(data, "--heads", heads)
    assert (found.code, found.json["chains"][0]["anchored_to"]) == (0, int(seq))


def test_the_same_snapshot_gives_the_same_bundle(trail: Trail) -> None:
    """But for its time, and what signs that."""
    made = [export(trail, Wanted(format=Format.BUNDLE, agents=("scout", "other"))) for _ in range(2)]
    contents = []
    for data in made:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            contents.append([(n, archive.read(n)) for n in archive.namelist() if n != "manifest.json"])
    assert contents[0] == contents[1]


# --- another verifier --------------------------------------------------------------------------------------


def node(path: Path, key: str) -> int:
    """The exit code of the verifier in another language."""
    command = [str(NODE), str(VERIFIER), str(path), "--public-key", key]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_the_independent_verifier_agrees_on_exports_and_bundles(trail: Trail, tmp_path: Path) -> None:
    key, path = key_of(trail), tmp_path / "export"
    data = export(trail, Wanted())
    lines = data.splitlines(keepends=True)
    [[later]] = trail.fetch("SELECT max(created_at) FROM trails.agent_audit_trails WHERE agent_id = 'scout'")
    for content in (
        data,
        *(b"".join(lines[:count]) for count in (1, 5, 9, len(lines) - 1)),
        data[:-40],
        data.replace(b'"tool":"search"', b'"tool":"sEarch"', 1),
        data.replace(b'"complete_chains":true', b'"complete_chains":false', 1),
        data + lines[1],
        b"".join([*lines[:3], lines[4], lines[3], *lines[5:]]),
        export(trail, Wanted(since_us=to_microseconds(later))),
    ):
        path.write_bytes(content)
        assert node(path, key) == verify(path, "--public-key", key).code
        assert node(path, "ab" * 32) in {1, 3, 7}
    bundle = export(trail, Wanted(format=Format.BUNDLE))
    for number, change in enumerate(
        (
            lambda members: members,
            _without("records/scout"),
            _without("manifest.json"),
            _changed("records/scout", b'"tool":"search"', b'"tool":"sEarch"'),
            _changed("keys.json", b'"key_id"', b'"kEy_id"'),
            _changed("manifest.json", b'"records":15', b'"records":14'),
            lambda members: [*members[:-1], ("more.txt", b""), members[-1]],
        )
    ):
        path.write_bytes(repacked(bundle, change))
        with zipfile.ZipFile(path) as archive:
            archive.extractall(tmp_path / f"bundle {number}")
        assert node(tmp_path / f"bundle {number}", key) == verify(path, "--public-key", key).code
