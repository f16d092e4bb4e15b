"""Looking at records in the console is itself on record (case T15), once an hour and not once a page.

The first time that a key looks at the records of an agent within an hour, a ``viewed`` record of the tenant's
administration chain says so, before anything is shown: which key, whose records, and what they were filtered
by then. Further pages of the same agent within that hour add nothing, so that a person who pages through a
log makes no storm, and looking at the administration chain does not go on about itself. Each process of the
service remembers for itself; with several there may be a record from each.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from app.errors import TrailsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.chain.strict import JsonObject
    from app.ledger.tenancy.administration import Administration
    from app.principal import Grant

HOUR_SECS: Final = 3_600.0
MOST: Final = 10_000
"""Views that a process remembers."""

_log: Final = logging.getLogger("trails.ledger")


class Views:
    """Who has looked at what within the last hour, in one process; behind ``Ledger``."""

    def __init__(self, administration: Administration, *, secs: float = HOUR_SECS) -> None:
        self._administration = administration
        self._secs = secs
        self._seen: OrderedDict[tuple[object, ...], float] = OrderedDict()

    async def put_on_record(self, grant: Grant, what: JsonObject, filters: Mapping[str, str]) -> None:
        """Records that the grant's key looks at something, unless it did within this hour.

        What is looked at is shown even if that cannot be told; the log says so then.

        Args:
            grant: who looks.
            what: what is looked at: ``{"agent_id": …}`` or ``{"session": …}``; by the name ``session_id``
                the record would itself be one of the session's.
            filters: what of it is asked for.
        """
        view = grant.tenant_id, grant.key, *sorted(map(str, what.items()))
        if not self._is_new(view):
            return
        payload: JsonObject = {"act": "viewed", **what, "filter": {**filters}, "key": grant.key}
        try:
            await self._administration.record(grant.tenant_id, grant.actor, payload)
        except TrailsError as error:
            self._seen.pop(view, None)
            _log.warning("a view of records is not on record: %s", error.message)

    def _is_new(self, view: tuple[object, ...]) -> bool:
        now = time.monotonic()
        before = self._seen.get(view)
        if before is not None and now - before < self._secs:
            return False
        self._seen[view] = now
        self._seen.move_to_end(view)
        while len(self._seen) > MOST:
            self._seen.popitem(last=False)
        return True
