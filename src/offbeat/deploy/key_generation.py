"""Make the keys and certificates of a federation; only their owner can read private keys."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from offbeat.core.errors import ConfigError, RunError
from offbeat.deploy.federation_keys import (
    DAY,
    LOCAL_NAMES,
    SITE_NAME,
    check_dates,
    public_line,
    read_certificate,
    read_private,
)

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


def make_authority(folder: Path, days: int) -> bool:
    """Make a certificate authority unless there is one; it is never replaced, because all sites trust it."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    if (folder / "ca.pem").exists() and (folder / "ca.key").exists():
        return False
    if (folder / "ca.pem").exists() or (folder / "ca.key").exists():
        raise ConfigError(f"{folder} has only one of ca.pem and ca.key: restore the other or use another --dir")
    key = _new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "offbeat federation")])
    builder = _new_builder(name, name, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(
        _key_usage(key_cert_sign=True, crl_sign=True, digital_signature=True), critical=True
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    _write(folder / "ca.key", _private_bytes(key), secret=True)
    _write(folder / "ca.pem", _sign(builder, key))
    return True


def make_server(folder: Path, hosts: Sequence[str], days: int) -> None:
    """Make a certificate for the server under these names and addresses; replace an earlier one."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    authority, signer = read_certificate(folder / "ca.pem"), read_private(folder / "ca.key")
    check_dates(folder / "ca.pem")
    key, names = _new_key(), list(dict.fromkeys((*hosts, *LOCAL_NAMES)))
    general = [_general_name(host) for host in names]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    builder = _new_builder(subject, authority.subject, key.public_key(), days)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())  # type: ignore[arg-type]
    for extension, critical in (
        (x509.SubjectAlternativeName(general), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(digital_signature=True), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (identifier, False),
        (issuer, False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    _write(folder / "server.key", _private_bytes(key), secret=True, again=True)
    _write(folder / "server.pem", _sign(builder, signer), again=True)


def make_site(folder: Path, name: str) -> Path:
    """Make the folder of a site: its key pair and the certificate of the authority."""
    if not SITE_NAME.fullmatch(name):
        raise ConfigError(
            f"--site {name!r}: a name consists of letters, digits, '.', '_' and '-', and starts with a letter or digit"
        )
    home = folder / "sites" / name
    if (home / "site.key").exists() or (home / "site.pub").exists():
        raise ConfigError(f"{home} already has keys, which are not replaced; remove the folder to make new ones")
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = _new_key()
    _write(home / "site.key", _private_bytes(key, ssh=True), secret=True)
    _write(home / "site.pub", public_line(key) + f" {name}\n".encode())
    _write(home / "ca.pem", (folder / "ca.pem").read_bytes(), again=True)
    return home


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())  # Flower takes the NIST curves


def _new_builder(subject: x509.Name, issuer: x509.Name, key: object, days: int) -> x509.CertificateBuilder:
    """Start a certificate that is valid from now on."""
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)  # type: ignore[arg-type]
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - DAY / 24).not_valid_after(now + days * DAY)  # clocks may differ a little


def _key_usage(**used: bool) -> x509.KeyUsage:
    """Return the extension that allows only these uses of a key."""
    from cryptography import x509

    names = "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign "
    names += "crl_sign encipher_only decipher_only"
    return x509.KeyUsage(**{name: used.get(name, False) for name in names.split()})


def _general_name(host: str) -> x509.GeneralName:
    """Return a host name or address as the name in a certificate."""
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", host):
        raise ConfigError(f"--host {host!r} is not a host name or address")
    return x509.DNSName(host)


def _sign(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> bytes:
    """Return the signed certificate as PEM."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    return builder.sign(key, hashes.SHA384()).public_bytes(Encoding.PEM)


def _private_bytes(key: EllipticCurvePrivateKey, ssh: bool = False) -> bytes:
    """Return a private key as PEM or in OpenSSH format, without a passphrase."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH if ssh else PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes, secret: bool = False, again: bool = False) -> None:
    """Write a file atomically; a secret one is never readable by others."""
    half = path.with_name(f"{path.name}.tmp")
    if path.exists() and not again:
        raise ConfigError(f"{path} already exists and is not replaced")
    try:
        half.unlink(missing_ok=True)
        file = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600 if secret else 0o644)
        with os.fdopen(file, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        half.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from None
