"""Heads kept elsewhere: how they are written, and to which chain they belong."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.verification.anchors import Anchor, checkpoints, contradiction, parse_checkpoint, read_heads

HASH = "ab" * 32
UUID = "6a07e448-31e4-4527-8d9b-1c672733f821"


@pytest.mark.parametrize(
    "text", ["", "1", f":{HASH}", f"01:{HASH}", f"-1:{HASH}", f"1:{HASH.upper()}", f"1:{HASH}0"]
)
def test_a_checkpoint_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="SEQ:HASH"):
        parse_checkpoint(text)


def test_a_heads_file_names_chains_in_three_ways_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "heads.txt"
    file.write_text(
        f"# kept on Monday\n\n1:{HASH}\n2:{HASH} {UUID} acme/scout\n3:{HASH} acme/scout\n4:{HASH} scout\n"
    )
    found = read_heads(file)
    assert found.troubles == ()
    assert found.anchors == (
        Anchor(1, HASH),
        Anchor(2, HASH, log_uuid=UUID, told="acme/scout"),
        Anchor(3, HASH, tenant="acme", agent_id="scout"),
        Anchor(4, HASH, agent_id="scout"),
    )


def test_a_bad_line_of_a_heads_file_is_named_and_the_others_count(tmp_path: Path) -> None:
    file = tmp_path / "heads.txt"
    file.write_bytes(f"\ufeff1:{HASH}\nnonsense\n2:{HASH}\n".encode() + b"\xff\n" * 9)
    found = read_heads(file)
    assert found.anchors == (Anchor(1, HASH), Anchor(2, HASH))
    assert "line 2" in found.troubles[0]
    assert (len(found.troubles), "7 more lines" in found.troubles[-1]) == (4, True)


def test_a_heads_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in read_heads(tmp_path / "gone").troubles[0]


def test_the_case_of_a_uuid_does_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "heads.txt"
    file.write_text(f"2:{HASH} {UUID.upper()}\n")
    (anchor,) = read_heads(file).anchors
    assert anchor.log_uuid == UUID
    assert anchor.belongs_to(tenant=None, agent_id=None, log_uuid=UUID.upper())


@pytest.mark.parametrize(
    ("anchor", "belongs"),
    [
        (Anchor(1, HASH), True),
        (Anchor(1, HASH, log_uuid=UUID), True),
        (Anchor(1, HASH, log_uuid="other"), False),
        (Anchor(1, HASH, tenant="acme", agent_id="scout"), True),
        (Anchor(1, HASH, tenant="other", agent_id="scout"), False),
        (Anchor(1, HASH, agent_id="other"), False),
    ],
)
def test_a_head_belongs_to_the_chain_that_it_names(anchor: Anchor, belongs: bool) -> None:
    assert anchor.belongs_to(tenant="acme", agent_id="scout", log_uuid=UUID) is belongs


def test_contradicting_heads_are_said_and_the_first_counts() -> None:
    heads = [Anchor(1, HASH), Anchor(1, "cd" * 32)]
    assert checkpoints(heads) == {1: HASH}
    assert "seq 1 different hashes" in contradiction(heads)
    assert contradiction([heads[0], heads[0], Anchor(2, "cd" * 32)]) == ""
