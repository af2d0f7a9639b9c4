"""Certificates for tests: for 127.0.0.1, signed by themselves, valid for a day."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CERT, KEY = "cert.pem", "key.pem"


def write_pair(folder: Path, name: str = "test") -> None:
    """Writes cert.pem and key.pem; `name` is the certificate's common name."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number(), now, now + dt.timedelta(1))
    signed = made.add_extension(address, critical=False).sign(key, hashes.SHA256())
    plain = serialization.NoEncryption()
    (folder / CERT).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / KEY).write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))


def mount(folder: Path, version: str) -> Path:
    """Writes a pair as kubelet mounts a Secret, or renews it: its files are links through `..data`, which is swapped in one step."""
    (folder / version).mkdir()
    write_pair(folder / version, version)
    scratch = folder / "..data_tmp"
    scratch.symlink_to(version)
    scratch.replace(folder / "..data")
    for name in (CERT, KEY):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    return folder
