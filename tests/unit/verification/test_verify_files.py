"""``trails verify FILE``: verdicts, exit codes, and what each says (cases C18, C20 to C23, C31, C32, T17)."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import app.verification.files
from app.chain.audit import verify_chain
from app.chain.keys import SigningKey
from app.chain.link import seal_all
from app.chain.record import Draft, export_line, split_line
from app.verification.exported import Progress
from tests.support import cli
from tests.support.cli import Result, faults, run_trails
from tests.support.jobs import shared_files

VECTORS = Path(__file__).parents[2] / "vectors"
EXPECTATIONS = json.loads((VECTORS / "expectations.json").read_text(encoding="utf-8"))
PLAIN = VECTORS / "good/plain.jsonl"
KEY = EXPECTATIONS[0]["public_key"]
AGENT = json.loads(PLAIN.read_bytes().splitlines()[0])["payload"]["log_id"]


def verify(*arguments: object, stdin: bytes = b"") -> Result:
    """``trails verify`` in its three forms, and shared by workers line by line, which must agree."""
    found = cli.verify(*arguments, stdin=stdin)
    for size in (1, 2_000):
        with shared_files(size):
            shared = run_trails("verify", *arguments, "--jobs", 2, "--json", stdin=stdin)
        assert (shared.code, shared.out) == (found.code, found.out)
    return found


def lines(path: Path = PLAIN) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def written(tmp_path: Path, *content: bytes) -> Path:
    file = tmp_path / "export.jsonl"
    file.write_bytes(b"".join(content))
    return file


@pytest.mark.parametrize("entry", EXPECTATIONS, ids=[entry["file"] for entry in EXPECTATIONS])
def test_c21_every_stored_chain_gets_its_exit_code(entry: dict[str, Any]) -> None:
    arguments: list[object] = [VECTORS / entry["file"]]
    if entry["public_key"] is not None:
        arguments += ["--public-key", entry["public_key"]]
    if entry["checkpoint"] is not None:
        arguments += ["--checkpoint", "{}:{}".format(*entry["checkpoint"])]
    result = verify(*arguments)
    assert (result.code, result.json["checked"]) == (entry["exit_code"], entry["checked"])
    expected = [(fault["seq"], fault["fault"]) for fault in entry["faults"]]
    assert faults(result) == expected


def test_c21_only_zero_lets_a_shell_go_on() -> None:
    def echo(*arguments: str) -> str:
        command = f'"{sys.executable}" -m app.cli verify --quiet "$@" && echo OK'
        done = subprocess.run(
            ["sh", "-c", command, "sh", *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout

    assert echo(str(PLAIN), "--public-key", KEY) == "OK\n"
    assert echo(str(PLAIN)) == ""
    assert echo(str(VECTORS / "bad/payload_byte.jsonl"), "--public-key", KEY) == ""


def test_the_answer_says_where_and_why_in_text_too() -> None:
    text = run_trails("verify", VECTORS / "bad/prev_hash.jsonl", "--public-key", KEY).out
    assert "seq 5: link: prev_hash is not the predecessor's hash" in text


def test_c20_an_empty_file_verifies_nothing(tmp_path: Path) -> None:
    result = verify(written(tmp_path), "--public-key", KEY)
    assert (result.code, result.json["checked"]) == (4, 0)


def test_c20_a_file_of_another_agent_verifies_nothing() -> None:
    result = verify(PLAIN, "--public-key", KEY, "--agent", "somebody-else")
    assert (result.code, result.json["checked"]) == (4, 0)
    assert "somebody-else" in result.json["chains"][0]["note"]


def test_c18_a_cut_tail_is_found_by_a_head_kept_elsewhere_alone(tmp_path: Path) -> None:
    last = split_line(lines()[-1].decode().strip())
    cut = written(tmp_path, *lines()[:-3])
    alone = verify(cut, "--public-key", KEY)
    assert alone.code == 0
    assert "only a head kept elsewhere" in alone.json["completeness"]
    held_against = verify(cut, "--public-key", KEY, "--checkpoint", f"9:{last.hash}")
    assert held_against.code == 3
    assert held_against.json["chains"][0]["missing_checkpoints"] == [9]
    assert (
        "ends at seq 6, a head kept elsewhere says 9"
        in run_trails("verify", cut, "--checkpoint", f"9:{last.hash}").out
    )


def test_a_checkpoint_with_another_hash_is_tampering() -> None:
    result = verify(PLAIN, "--public-key", KEY, "--checkpoint", "9:" + "0" * 64)
    assert (result.code, faults(result)) == (1, [(9, "fork")])


def test_a_confirmed_head_is_said(tmp_path: Path) -> None:
    head = verify(PLAIN, "--public-key", KEY).json["chains"][0]["head"]
    heads = tmp_path / "heads.txt"
    assert run_trails("verify", PLAIN, "--public-key", KEY, "--save-heads", heads).code == 0
    result = verify(PLAIN, "--public-key", KEY, "--heads", heads)
    assert (
        result.json["completeness"]
        == f"complete up to seq {head['seq']}, which a head kept elsewhere confirms"
    )


def test_c18_a_chain_that_a_kept_head_names_must_be_there(tmp_path: Path) -> None:
    heads = tmp_path / "heads.txt"
    heads.write_text(f"4:{'ab' * 32} other-agent\n")
    result = verify(PLAIN, "--public-key", KEY, "--heads", heads)
    assert (result.code, [chain["verdict"] for chain in result.json["chains"]]) == (
        3,
        ["verified", "incomplete"],
    )


def test_c22_broken_outranks_what_could_not_be_checked_and_both_are_listed(tmp_path: Path) -> None:
    gone = tmp_path / "gone.jsonl"
    result = verify(PLAIN, gone, VECTORS / "bad/payload_byte.jsonl", "--public-key", KEY)
    assert result.code == 1
    verdicts = [chain["verdict"] for chain in result.json["chains"]]
    assert verdicts == ["verified", "could not check", "tampered"]


def test_c21_what_cannot_be_read_could_not_be_checked(tmp_path: Path) -> None:
    assert verify(tmp_path / "gone.jsonl").code == 5
    assert verify(tmp_path).code == 5
    assert verify(written(tmp_path, b"%PDF-1.7\n", b"\x00\x01\n")).code == 5
    assert verify(written(tmp_path, PLAIN.read_text().encode("utf-16"))).code == 5


def test_a_compressed_export_says_how_to_read_it(tmp_path: Path) -> None:
    file = written(tmp_path, gzip.compress(PLAIN.read_bytes()))
    result = verify(file)
    assert result.code == 5
    assert f"gunzip -c {file} | trails verify -" in result.json["chains"][0]["note"]


def test_heads_that_cannot_be_read_could_not_be_checked(tmp_path: Path) -> None:
    assert verify(PLAIN, "--public-key", KEY, "--heads", tmp_path / "gone").code == 5


def test_t17_a_newer_format_is_named_and_could_not_be_checked(tmp_path: Path) -> None:
    result = verify(written(tmp_path, b'{"format":"lineage-audit-v2","records":[]}\n'))
    assert result.code == 5
    assert "lineage-audit-v2" in result.json["chains"][0]["note"]


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""])
def test_c32_a_file_saved_again_is_altered_and_says_how(tmp_path: Path, mark: bytes) -> None:
    ending = b"\n" if mark else b"\r\n"
    result = verify(
        written(tmp_path, mark, *(line.rstrip() + ending for line in lines())), "--public-key", KEY
    )
    assert result.code == 1
    assert result.json["chains"][0]["faults"][0]["reason"].startswith("file altered")
    assert result.json["chains"][0]["fault_count"] == 1


def test_c32_a_line_cut_in_the_middle_is_incomplete(tmp_path: Path) -> None:
    assert verify(written(tmp_path, *lines()[:-1], lines()[-1][:100]), "--public-key", KEY).code == 3


def test_a_line_without_end_fills_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.verification.chunks.MAX_LINE_BYTES", 4096)
    assert verify(written(tmp_path, *lines(), b"x" * 100_000), "--public-key", KEY).code == 1


def test_t11_memory_does_not_grow_with_the_length_of_a_chain(tmp_path: Path) -> None:
    def peak(records: int) -> int:
        signer = SigningKey.from_raw(bytes(range(32)))
        genesis = Draft("genesis", {"log_id": "a", "public_key": signer.public.hex}, "a")
        events = [Draft("event", {"data": "x" * 200}, "a")] * records
        sealed = seal_all([genesis, *events], None, 0, signer)
        file = written(tmp_path, *(export_line(record).encode() + b"\n" for record in sealed))
        del sealed
        tracemalloc.start()
        try:
            assert run_trails("verify", file, "--quiet").code == 6
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)  # what is loaded once
    assert peak(2_000) < peak(200) + 100_000


def test_c23_a_chain_signed_anew_is_never_verified_without_a_pinned_key() -> None:
    resigned = VECTORS / "bad/resigned.jsonl"
    pinned = verify(resigned, "--public-key", KEY)
    assert (pinned.code, pinned.json["verdict"]) == (7, "another key")
    assert pinned.json["chains"][0]["other_key"]["pinned"] == [KEY]
    begun = json.loads(lines(resigned)[0])["payload"]["public_key"]
    text = run_trails("verify", resigned, "--public-key", KEY).out
    assert f"begins with key {begun}, which is not {KEY}" in text.replace("\n", " ")
    assert verify(resigned).code == 6
    assert "the signer is not trusted" in run_trails("verify", resigned).out


def test_one_of_several_pinned_keys_is_enough() -> None:
    other = json.loads(lines(VECTORS / "bad/resigned.jsonl")[0])["payload"]["public_key"]
    assert verify(PLAIN, "--public-key", other, "--public-key", KEY).code == 0


def test_standard_input_is_a_file_too() -> None:
    assert verify("-", "--public-key", KEY, stdin=PLAIN.read_bytes()).code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--no-such-option"],
        [str(PLAIN), "--public-key", "xy"],
        [str(PLAIN), "--public-key", "00" * 32],
        [str(PLAIN), "--checkpoint", "9"],
        [str(PLAIN), "--database"],
        [str(PLAIN), str(PLAIN), "--checkpoint", "9:" + "ab" * 32],
    ],
)
def test_c21_a_command_line_that_cannot_be_read_has_its_own_code(arguments: list[str]) -> None:
    assert run_trails("verify", *arguments).code == 2


def test_an_unforeseen_error_never_looks_like_a_verdict_on_records() -> None:
    result = verify("a\0b")  # no file name that any operating system knows
    assert result.code == 5
    assert "ValueError" in result.json["chains"][0]["note"]


TAMPERED = VECTORS / "bad/payload_byte.jsonl"


def tampered_and(*arguments: object) -> Any:
    """The answer for a tampered file with other trouble beside it: tampering outranks, and is named."""
    result = verify(TAMPERED, *arguments, "--public-key", KEY)
    assert result.code == 1
    assert [fault for fault in faults(result) if fault[1] == "content"]
    return result.json


@pytest.mark.parametrize(
    "content",
    [b'{"actor":' + b"[" * 100_000, b'{"actor":' + b"[" * 100_000 + b"\n", b'{"format":' * 100_000 + b"\n"],
)
def test_c22_a_file_that_no_parser_takes_hides_no_other_file(tmp_path: Path, content: bytes) -> None:
    deep = written(tmp_path, content)
    chains = tampered_and(deep)["chains"]
    assert [chain["verdict"] for chain in chains] == ["tampered", "could not check"]
    assert verify(deep).code == 5


@pytest.mark.parametrize(
    "line", [b'{"actor":' + b"[" * 100_000 + b"\n", b'{"format":"lineage-audit-v2"}\n', b"\xff\xfe\n", b"\n"]
)
def test_c22_a_line_put_before_a_tampered_export_hides_nothing(tmp_path: Path, line: bytes) -> None:
    result = verify(written(tmp_path, line * 2, *lines(TAMPERED)), "--public-key", KEY, "--agent", AGENT)
    assert result.code == 1
    assert any(fault[1] == "content" for fault in faults(result))


def test_t17_a_sound_chain_behind_a_newer_formats_line_is_not_called_verified(tmp_path: Path) -> None:
    result = verify(written(tmp_path, b'{"format":"lineage-audit-v2"}\n', *lines()), "--public-key", KEY)
    assert (result.code, result.json["checked"]) == (5, 10)
    assert "lineage-audit-v2" in result.json["chains"][0]["note"]


def test_t17_records_of_a_newer_format_are_not_called_tampered(tmp_path: Path) -> None:
    newer = [line.replace(b'{"actor"', b'{"format":"lineage-audit-v2","actor"') for line in lines()]
    result = verify(written(tmp_path, *newer))
    assert result.code == 5
    assert "lineage-audit-v2" in result.json["chains"][0]["note"]


def test_an_agents_file_without_its_genesis_is_tampered_whatever_agent_is_asked_for(tmp_path: Path) -> None:
    assert verify(written(tmp_path, *lines()[1:]), "--public-key", KEY, "--agent", AGENT).code == 1


def test_c22_heads_that_cannot_be_read_hide_no_tampering(tmp_path: Path) -> None:
    answer = tampered_and("--heads", tmp_path / "gone")
    assert "cannot be read" in answer["findings"][0]["reason"]
    nonsense = written(tmp_path, b"nonsense\n")
    assert "line 1" in tampered_and("--heads", nonsense)["findings"][0]["reason"]
    assert verify(PLAIN, "--public-key", KEY, "--heads", nonsense).code == 5
    unnamed = written(tmp_path, b"9:" + b"ab" * 32 + b"\n")
    assert "of which chain" in tampered_and(PLAIN, "--heads", unnamed)["findings"][0]["reason"]


def test_c22_heads_that_contradict_each_other_hide_no_tampering() -> None:
    heads = ["--checkpoint", "9:" + "ab" * 32, "--checkpoint", "9:" + "cd" * 32]
    assert "seq 9 different hashes" in tampered_and(*heads)["chains"][0]["note"]
    assert "seq 9 different hashes" in run_trails("verify", TAMPERED, *heads).out


def test_of_two_heads_at_one_seq_one_disagrees_with_any_chain() -> None:
    head = verify(PLAIN, "--public-key", KEY).json["chains"][0]["head"]
    right, wrong = f"{head['seq']}:{head['hash']}", f"{head['seq']}:" + "ab" * 32
    for heads in ([right, wrong], [wrong, right]):
        arguments = [word for value in heads for word in ("--checkpoint", value)]
        assert verify(PLAIN, "--public-key", KEY, *arguments).code == 1


def test_a_head_of_a_chain_whose_uuid_is_in_upper_case_is_that_chains(tmp_path: Path) -> None:
    heads = tmp_path / "heads.txt"
    run_trails("verify", PLAIN, "--public-key", KEY, "--save-heads", heads)
    head, log_uuid, *_ = heads.read_text().split()
    heads.write_text(f"{head} {log_uuid.upper()}\n")
    result = verify(PLAIN, "--public-key", KEY, "--heads", heads)
    assert (result.code, result.json["chains"][0]["anchored_to"]) == (0, int(head.partition(":")[0]))


@pytest.mark.parametrize("content", [b"hello", b"\0\0\0\0", b" ", b"hello\nworld", b"[]", b'{"a":1}'])
def test_c21_what_holds_no_record_is_no_export(tmp_path: Path, content: bytes) -> None:
    result = verify(written(tmp_path, content))
    assert result.code == 5
    assert result.json["chains"][0]["note"].startswith("not an export of the format")


def test_a_file_that_breaks_off_while_it_is_read_keeps_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = app.verification.files._lines

    def breaking(file: BinaryIO, progress: Progress) -> Iterator[bytes]:
        yield from read(file, progress)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("app.verification.files._lines", breaking)
    answer = tampered_and()
    assert "Input/output error" in answer["chains"][0]["note"]
    assert "Input/output error" in run_trails("verify", TAMPERED, "--public-key", KEY).out
    assert verify(PLAIN, "--public-key", KEY).code == 5


def test_a_file_name_that_is_no_text_is_no_verdict(tmp_path: Path) -> None:
    file = tmp_path / "\udcff.jsonl"
    file.write_bytes(PLAIN.read_bytes())
    assert verify(file, "--public-key", KEY).code == 0


def test_verifying_a_file_needs_no_package_of_the_server() -> None:
    program = (
        "import sys\n"
        "server = ('asyncpg', 'sqlalchemy', 'alembic', 'litestar', 'uvicorn', 'psycopg', 'httpx2')\n"
        "for name in server: sys.modules[name] = None\n"
        "from app.cli.exits import run_command\n"
        "from app.cli.main import trails\n"
        f"sys.exit(run_command(trails, ['verify', {str(PLAIN)!r}, '--public-key', {KEY!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_vectors_are_what_these_tests_think() -> None:
    assert verify_chain(split_line(line.decode().strip()) for line in lines()).checked == 10
