"""Keys: what is accepted as a key or signature, and secrets at rest."""

from __future__ import annotations

import hashlib
import pickle

import pytest

from app.chain.keys import PublicKey, SigningKey, derive, open_secret, seal_secret
from app.errors import KeyMaterialError, SignatureError
from tests.vectors.make_vectors import ED25519_ORDER, ONE, STRANGER

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
HASH = "ab" * 32
MASTER = bytes(range(32))
NONCE = bytes(12)

RFC_8032_SEED = "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7"
RFC_8032_PUBLIC = "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025"


def _encode(y: int, *, sign: int = 0) -> str:
    return (y | sign << 255).to_bytes(32, "little").hex()


def _add(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Addition on the curve -x² + y² = 1 + d x² y² (RFC 8032, section 5.1)."""
    (x1, y1), (x2, y2) = one, other
    k = D * x1 * x2 * y1 * y2 % P
    x = (x1 * y2 + x2 * y1) * pow(1 + k, -1, P) % P
    return x, (y1 * y2 + x1 * x2) * pow(1 - k, -1, P) % P


def _decode(text: str) -> tuple[int, int]:
    encoded = int.from_bytes(bytes.fromhex(text), "little")
    y = encoded & (2**255 - 1)
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    assert x * x % P == square
    return (x if x & 1 == encoded >> 255 else P - x), y


def _small_order_points() -> list[str]:
    """All points whose order divides 8, as the multiples of a point of order 8 found by multiplication."""
    y = 2
    while True:  # any point, times the prime order of the base point, has an order that divides 8
        y += 1
        try:
            point = _decode(_encode(y))
        except AssertionError:
            continue
        torsion = (0, 1)
        for bit in f"{ED25519_ORDER:b}":
            torsion = _add(torsion, torsion)
            if bit == "1":
                torsion = _add(torsion, point)
        multiples = [(0, 1)]
        while (following := _add(multiples[-1], torsion)) != (0, 1):
            multiples.append(following)
        if len(multiples) == 8:
            return [_encode(v, sign=u & 1) for u, v in multiples]


def test_keys_of_small_order_are_refused() -> None:
    points = _small_order_points()
    assert len(set(points)) == 8
    for point in points:
        with pytest.raises(KeyMaterialError, match="small order"):
            PublicKey.load(point)


@pytest.mark.parametrize("y", [P, P + 1, 2**255 - 1])
@pytest.mark.parametrize("sign", [0, 1])
def test_keys_that_are_not_canonical_are_refused(y: int, sign: int) -> None:
    with pytest.raises(KeyMaterialError):
        PublicKey.load(_encode(y, sign=sign))


def test_keys_that_are_not_on_the_curve_are_refused() -> None:
    with pytest.raises(KeyMaterialError, match="not a point"):
        PublicKey.load(_encode(2))


@pytest.mark.parametrize(
    "text", ["", "ab", ONE.public.hex.upper(), ONE.public.hex + "\n", "zz" * 32, "é" * 64]
)
def test_a_public_key_has_one_text(text: str) -> None:
    with pytest.raises(KeyMaterialError):
        PublicKey.load(text)


def test_a_key_is_that_of_rfc8032() -> None:
    signer = SigningKey.from_raw(bytes.fromhex(RFC_8032_SEED))
    assert signer.public == PublicKey.load(RFC_8032_PUBLIC)
    assert signer.public.key_id == hashlib.sha256(bytes.fromhex(RFC_8032_PUBLIC)).hexdigest()[:16]


def test_a_signature_is_verified_or_an_error() -> None:
    signature = ONE.sign(bytes.fromhex(HASH)).hex()
    ONE.public.verify(HASH, signature)
    with pytest.raises(SignatureError):
        STRANGER.public.verify(HASH, signature)
    with pytest.raises(SignatureError):
        ONE.public.verify("ac" * 32, signature)


def test_c26_a_signature_has_exactly_one_accepted_text() -> None:
    signature = ONE.sign(bytes.fromhex(HASH)).hex()
    s = int.from_bytes(bytes.fromhex(signature[64:]), "little")
    altered = [
        signature[:64] + (s + ED25519_ORDER).to_bytes(32, "little").hex(),
        signature.upper(),
        signature + "\n",
        " " + signature[1:],
        signature[:-2],
        signature + "00",
        signature[:64] + " " * 2 + signature[66:],
        signature.replace(signature[0], "\uff10", 1),
        "",
    ]
    for text in altered:
        with pytest.raises(SignatureError):
            ONE.public.verify(HASH, text)


def test_c26_the_canonical_rule_is_ours_and_not_left_to_the_library() -> None:
    signature = ONE.sign(bytes.fromhex(HASH)).hex()
    s = int.from_bytes(bytes.fromhex(signature[64:]), "little")
    for altered in (s + ED25519_ORDER, ED25519_ORDER, 2**256 - 1):
        with pytest.raises(SignatureError, match="not canonical"):
            ONE.public.verify(HASH, signature[:64] + altered.to_bytes(32, "little").hex())


def test_every_flipped_bit_of_a_signature_is_found() -> None:
    signature = bytes.fromhex(ONE.sign(bytes.fromhex(HASH)).hex())
    for bit in range(512):
        flipped = bytearray(signature)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SignatureError):
            ONE.public.verify(HASH, flipped.hex())


def test_a_signing_key_shows_nothing_of_its_secret() -> None:
    secret = bytes.fromhex(RFC_8032_SEED)
    signer = SigningKey.from_raw(secret)
    for shown in (repr(signer), str(signer), f"{signer}"):
        assert RFC_8032_SEED not in shown
    with pytest.raises(KeyMaterialError):
        pickle.dumps(signer)
    with pytest.raises(KeyMaterialError):
        SigningKey.from_raw(secret[:31])


def test_public_keys_compare_by_their_bytes() -> None:
    again = PublicKey.load(ONE.public.hex)
    assert {again: 1}[ONE.public] == 1
    assert again != STRANGER.public
    assert again != ONE.public.hex


def test_a_secret_opens_only_under_its_master_key_and_context() -> None:
    sealed = seal_secret(MASTER, b"secret", context=b"tenant/key", nonce=NONCE)
    assert b"secret" not in sealed
    assert open_secret(MASTER, sealed, context=b"tenant/key") == b"secret"
    for master, text, context in (
        (bytes(32), sealed, b"tenant/key"),
        (MASTER, sealed, b"other/key"),
        (MASTER, sealed[:-1], b"tenant/key"),
        (MASTER, b"", b"tenant/key"),
        (MASTER, sealed[:12], b"tenant/key"),
    ):
        with pytest.raises(KeyMaterialError):
            open_secret(master, text, context=context)
    for position in range(len(sealed)):
        changed = bytearray(sealed)
        changed[position] ^= 1
        with pytest.raises(KeyMaterialError):
            open_secret(MASTER, bytes(changed), context=b"tenant/key")


def test_nonces_and_master_keys_have_their_length() -> None:
    with pytest.raises(KeyMaterialError):
        seal_secret(MASTER, b"x", context=b"", nonce=b"short")
    with pytest.raises(KeyMaterialError):
        derive(MASTER[:31], "purpose")


def test_each_purpose_has_its_own_key() -> None:
    keys = {derive(MASTER, purpose) for purpose in ("seal", "api-keys", "a", "b", "")}
    assert len(keys) == 5
    assert derive(MASTER, "a") == derive(MASTER, "a") != derive(bytes(32), "a")
    assert all(len(key) == 32 for key in keys)
