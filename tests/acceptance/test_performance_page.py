"""The figures of the page come from files of measured results, whole, and from nowhere else."""

from __future__ import annotations

import msgspec
import pytest

from tests.bench import page, results
from tests.bench.__main__ import KEYS
from tests.bench.form import Form
from tests.bench.verify import rows as verify_rows
from tests.soak import report
from tests.soak.traffic import RATES


def test_the_page_shows_what_is_kept() -> None:
    text = page.PAGE.read_text("utf-8")
    assert page.rendered(text, results.read(page.BENCH), report.read(page.SOAK)) == text


def test_every_row_and_every_kind_of_request_is_there() -> None:
    kept = results.read(page.BENCH)
    assert {row.key for row in kept.rows} == set(KEYS)
    [header, rule, *lines] = [line for line in page.bench_lines(kept) if line.startswith("|")]
    assert header == f"| {' | '.join(page.COLUMNS)} |"
    assert rule == f"|{'---|' * len(page.COLUMNS)}"
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == [row.name for row in kept.rows]
    assert {line.count("|") for line in lines} == {len(page.COLUMNS) + 1}
    assert {kind.name for kind in report.read(page.SOAK).kinds} == set(RATES)


def test_what_is_kept_has_the_form_that_is_written_today() -> None:
    kept = msgspec.json.decode(page.BENCH.read_bytes())
    [row] = verify_rows(Form.QUICK)
    measured = msgspec.structs.replace(results.read(page.BENCH), rows=(row,))
    written = msgspec.json.decode(results.to_json(measured))
    assert written.keys() == kept.keys()
    assert {frozenset(found) for found in kept["rows"]} == {frozenset(written["rows"][0])}


def test_a_page_without_its_markers_is_not_written_over() -> None:
    with pytest.raises(ValueError, match="markers"):
        page.rendered("# Lineage Trails\n", results.read(page.BENCH), report.read(page.SOAK))
