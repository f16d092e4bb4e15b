"""A certificate for this machine, signed by itself, for tests of what speaks TLS."""

from __future__ import annotations

import datetime as dt
from ipaddress import ip_address
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Certificate(msgspec.Struct, frozen=True):
    """Where the certificate and its key are."""

    certificate: Path
    key: Path


def make_certificate(folder: Path, *names: str) -> Certificate:
    """Makes one for 127.0.0.1 and ``names``, good for an hour."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    now = dt.datetime.now(dt.UTC)
    alternatives = [x509.DNSName(each) for each in names]
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), *alternatives]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    made = Certificate(folder / "server.crt", folder / "server.key")
    made.certificate.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    made.key.touch(mode=0o600)
    made.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return made
