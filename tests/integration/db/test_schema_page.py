"""The page on the SQL schema and its picture are those of the database."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import asyncpg

from db.comments import MEANINGS
from tests.support import write_schema
from tests.support.schema_picture import picture
from tests.support.schema_words import read


async def test_page_and_picture_are_up_to_date(admin: asyncpg.Connection) -> None:
    """``python -m tests.support.write_schema`` renews them."""
    relations = await read(admin)
    assert write_schema.PAGE.read_text("utf-8") == write_schema.page(relations)
    assert write_schema.PICTURE.read_text("utf-8") == picture(relations)
    ET.fromstring(picture(relations))  # noqa: S314  our own


async def test_every_table_says_what_it_is_for(admin: asyncpg.Connection) -> None:
    """A new one has its words in ``db/comments.py`` and in its migration."""
    tables = [relation for relation in await read(admin) if not relation.is_view]
    assert [table.name for table in tables if not table.about] == []
    for table in tables:
        if table.name in MEANINGS:
            assert all(column.comment for column in table.columns), table.name


async def test_every_view_and_each_of_its_columns_has_a_meaning(admin: asyncpg.Connection) -> None:
    views = [relation for relation in await read(admin) if relation.is_view]
    assert len(views) >= 11
    for view in views:
        assert view.about, view.name
        assert view.reads, view.name
        assert [column.name for column in view.columns if not column.comment] == [], view.name
