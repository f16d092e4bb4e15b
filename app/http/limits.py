"""How often: requests of one key, and failed attempts of one peer (case H12). Held per process, in memory.

A **key** may be given a limit (``TRAILS_RATE_PER_KEY``, off unless set). It counts by who the token proves
the caller to be: neither a header nor another address gets anybody more, and tenants behind one address do
not feel each other.

A **peer** whose tokens are not valid is answered 429 in place of 401 when it goes on
(``TRAILS_FAILURES_PER_PEER``). A valid token is always served, whatever its neighbours behind the same
address do: keys are 256 random bits that nobody guesses, and a token is proven or refused by an HMAC without
a look at the database. Only what was a key once is looked up, and that answer is kept for a moment. So a
limit on valid requests would protect nothing, and would let one tenant lock another one out. Attempts without
any token cost nothing and count for nothing.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from app.errors import TooManyRequestsError, TrailsError, UnauthorizedError
from app.principal import Principal

K = TypeVar("K", bound=Hashable)

BURST_SECS: Final = 5
"""Who was quiet may make up for so many seconds at once."""

SIGN_INS: Final = 10
"""Sign-ins to the console a minute: of one key, since each is put on record, and failed ones of one site."""

CAPACITY: Final = 20_000
"""Keys or peers counted at a time, about 5 MB; the one not heard of for longest is forgotten first."""

_NS: Final = 1_000_000_000


class Buckets(Generic[K]):
    """One token bucket a key, each kept as the moment at which it is full again. For one thread.

    Args:
        rate: what is taken in ``secs`` in the long run, a whole number from 1.
        capacity: buckets at most. To be forgotten is to be full.
        burst_secs: who was quiet may make up for so many seconds at once.
    """

    def __init__(
        self, rate: int, *, capacity: int = CAPACITY, secs: int = 1, burst_secs: int = BURST_SECS
    ) -> None:
        self._step = secs * _NS // rate
        self._depth = burst_secs * _NS
        self._capacity = capacity
        self._full_at: OrderedDict[K, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, key: K, now: int) -> bool:
        """Whether there was one to take; a refusal takes nothing.

        Args:
            key: whose bucket.
            now: monotonic nanoseconds.
        """
        full_at = max(self._full_at.get(key, now), now) + self._step
        if full_at - now > self._depth:
            self._full_at.move_to_end(key)
            return False
        self._full_at[key] = full_at
        self._full_at.move_to_end(key)
        if len(self._full_at) > self._capacity:
            self._full_at.popitem(last=False)
        return True


class Limits:
    """The limits of one process.

    Args:
        rate_per_key: requests a second of one key; 0: any number.
        failures_per_peer: attempts a second of one peer that are told that their token is not valid; 0: all.
        note: gets to know of each refusal, by the limit's name: ``key`` or ``peer``.
    """

    def __init__(
        self, rate_per_key: int, failures_per_peer: int, note: Callable[[str], None] = lambda _: None
    ) -> None:
        self._note = note
        self._keys: Buckets[Principal] | None = Buckets(rate_per_key) if rate_per_key else None
        self._peers: Buckets[str] | None = Buckets(failures_per_peer) if failures_per_peer else None
        self._sign_ins: Buckets[Principal] = Buckets(SIGN_INS, secs=60, burst_secs=60)
        self._failed_sign_ins: Buckets[str] = Buckets(SIGN_INS, secs=60, burst_secs=60)

    def admit(self, principal: Principal) -> Principal:
        """Counts a request of a proven caller.

        Raises:
            TooManyRequestsError: its key is over the limit; nothing was read or recorded.
        """
        if self._keys is not None and not self._keys.take(principal, time.monotonic_ns()):
            self._note("key")
            raise TooManyRequestsError("this key sends more requests than it may (TRAILS_RATE_PER_KEY)")
        return principal

    def failure(self, site: str, refusal: UnauthorizedError) -> TrailsError:
        """Counts an attempt with a token that is not valid, from this site; what it is answered with."""
        if self._peers is not None and not self._peers.take(site, time.monotonic_ns()):
            self._note("peer")
            return TooManyRequestsError(
                "too many requests with an invalid bearer token from this address; send a valid one"
            )
        return refusal

    def sign_in(self, principal: Principal) -> None:
        """Counts a sign-in to the console with a key that is one.

        Raises:
            TooManyRequestsError: it was used so too often in the last minute.
        """
        if not self._sign_ins.take(principal, time.monotonic_ns()):
            self._note("key")
            raise TooManyRequestsError("this key signs in too often; wait a moment")

    def failed_sign_in(self, site: str, refusal: UnauthorizedError) -> TrailsError:
        """Counts an attempt to sign in with what is no key, from this site; what it is answered with."""
        if not self._failed_sign_ins.take(site, time.monotonic_ns()):
            self._note("peer")
            return TooManyRequestsError("too many attempts from this address; wait a moment")
        return refusal
