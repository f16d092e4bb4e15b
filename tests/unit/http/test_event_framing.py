"""Events as they are sent: whatever they hold, one event is one event."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.http.event_stream import Event, framed
from tests.support.events import Parser, Received

DATA = st.text(
    st.one_of(st.sampled_from("\r\n :\0\u0085\u2028\u2029"), st.characters(exclude_categories=["Cs"]))
)
WORD = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: not text.startswith(" ")
)


@settings(max_examples=100)
@given(st.lists(st.tuples(DATA, WORD, WORD), max_size=4))
def test_a_client_gets_exactly_the_events_that_were_sent(sent: list[tuple[str, str, str]]) -> None:
    text = b"".join(framed(Event(data, id_, event)) for data, id_, event in sent).decode()
    assert Parser().text(text) == [
        Received(re.sub("\r\n|\r", "\n", data), id_, event) for data, id_, event in sent
    ]


def test_an_event_in_the_data_stays_data() -> None:
    text = framed(Event("a\n\nid: 7\nevent: end\ndata: forged\r\rretry: 1", "1")).decode()
    parser = Parser()
    [event] = parser.text(text)
    assert event.data == "a\n\nid: 7\nevent: end\ndata: forged\n\nretry: 1"
    assert (parser.last_id, parser.retry) == ("1", None)


@pytest.mark.parametrize("unfit", ["a\nb", "a\rb", "a\0b"])
def test_what_would_end_its_line_is_no_id_and_no_type(unfit: str) -> None:
    with pytest.raises(ValueError, match="line end"):
        framed(Event("", id=unfit))
    with pytest.raises(ValueError, match="line end"):
        framed(Event("", event=unfit))
