"""Keys and certificates of a federation, which identify the server and the sites that may join.

keys/ca.key         signs the server's certificate       keys/sites/NAME/      all that the site NAME needs
keys/ca.pem         trusted by the sites                   ca.pem                trusted by the site
keys/server.key     key of the server                      site.key              private key of the site
keys/server.pem     certificate of the server              site.pub              registered at the server
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from offbeat.core.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
DAY = datetime.timedelta(days=1)
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")  # every server certificate includes these


@dataclass(frozen=True)
class _KeyFolder:
    """A folder with keys and the certificate of their authority."""

    folder: Path

    @property
    def ca(self) -> Path:
        """Return the path of the authority's certificate."""
        return self.folder / "ca.pem"


class ServerKeys(_KeyFolder):
    """The certificate and the private key of a server, and the public keys of its sites."""

    @property
    def certificate(self) -> Path:
        return self.folder / "server.pem"

    @property
    def key(self) -> Path:
        return self.folder / "server.key"

    def sites(self) -> dict[str, Path]:
        """Return the public key files in the folder, by site name."""
        return {path.parent.name: path for path in sorted(self.folder.glob("sites/*/site.pub"))}

    def check(self, host: str) -> None:
        """Raise ConfigError if no site could connect with these keys."""
        for path in (self.ca, self.certificate, self.key):
            if not path.is_file():
                raise ConfigError(
                    f"{path} is missing: make keys with 'offbeat keys --host {host} --site NAME', or use --insecure "
                    "to try it out on this machine only"
                )
        check_permissions(self.key)
        certificate = read_certificate(self.certificate)
        names = [name for name in certificate_names(self.certificate) if name not in LOCAL_NAMES]
        check_dates(self.certificate, f"offbeat keys {' '.join(f'--host {name}' for name in names or [host])}")
        if certificate.public_key() != read_private(self.key).public_key():
            raise ConfigError(f"{self.key} is not the key of {self.certificate}: make both again with 'offbeat keys'")
        try:
            certificate.verify_directly_issued_by(read_certificate(self.ca))
        except Exception:
            raise ConfigError(
                f"{self.certificate} was not signed by {self.ca}: make it again with 'offbeat keys'"
            ) from None


class SiteKeys(_KeyFolder):
    """The key pair of a site."""

    @property
    def key(self) -> Path:
        return self.folder / "site.key"

    @property
    def public(self) -> Path:
        return self.folder / "site.pub"

    @property
    def name(self) -> str:
        """Name the site that the key was made for, also when its folder was renamed."""
        try:
            words = self.public.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError):
            words = []
        name = words[2] if len(words) == 3 else ""
        return name if SITE_NAME.fullmatch(name) else self.folder.resolve().name

    def check(self) -> None:
        """Raise ConfigError if the site cannot join with these keys."""
        for path in (self.ca, self.key, self.public):
            if not path.is_file():
                raise ConfigError(
                    f"{path} is missing: --keys is the folder that 'offbeat keys --site NAME' made for this site"
                )
        check_permissions(self.key)
        check_dates(self.ca)
        private = read_private(self.key, ssh=True)
        if fingerprint(self.public) != _fingerprint(public_line(private)):
            raise ConfigError(f"{self.public} does not belong to {self.key}: restore the folder as it was made")


def fingerprint(public: Path) -> str:
    """Return the fingerprint of a public key, SHA256:…, as ssh-keygen -l prints it."""
    try:
        return _fingerprint(public.read_bytes())
    except (OSError, ValueError, IndexError):
        raise ConfigError(f"{public} is not a public key: 'offbeat keys --site NAME' makes one") from None


def _fingerprint(line: bytes) -> str:
    """Return the fingerprint of a public key in OpenSSH format."""
    blob = base64.b64decode(line.split()[1], validate=True)
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def read_certificate(path: Path) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError:
        raise ConfigError(f"{path} is not a certificate: 'offbeat keys' makes one") from None


def certificate_names(path: Path) -> list[str]:
    """Return the host names and addresses that a certificate is valid for."""
    from cryptography import x509

    try:
        names = read_certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def days_left(path: Path) -> float:
    """Return the days until a certificate expires."""
    certificate = read_certificate(path)
    return (certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)) / DAY


def check_dates(path: Path, remedy: str = "offbeat keys --dir NEW --host … --site …") -> None:
    """Raise ConfigError if a certificate is not valid now; `remedy` is the command that makes a new one."""
    certificate, now = read_certificate(path), datetime.datetime.now(datetime.UTC)
    if now > certificate.not_valid_after_utc:
        raise ConfigError(
            f"{path} expired on {certificate.not_valid_after_utc:%Y-%m-%d}: make a new one with '{remedy}'"
        )
    if now < certificate.not_valid_before_utc:
        raise ConfigError(
            f"{path} is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC: is the clock of this "
            "machine right?"
        )


def check_permissions(key: Path) -> None:
    """Raise ConfigError if others can read a private key."""
    mode = key.stat().st_mode & 0o777
    if mode & 0o077:
        raise ConfigError(f"{key} can be read by others (mode {mode:o}): run 'chmod 600 {key}'")


def public_line(key: EllipticCurvePrivateKey) -> bytes:
    """Return the public key in OpenSSH format."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def read_private(path: Path, ssh: bool = False) -> EllipticCurvePrivateKey:
    """Return the private key in a PEM or OpenSSH file."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    try:
        key = (load_ssh_private_key if ssh else load_pem_private_key)(path.read_bytes(), None)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, TypeError):
        raise ConfigError(f"{path} is not a private key without a passphrase: 'offbeat keys' makes one") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is not an elliptic curve key, which Flower requires: 'offbeat keys' makes one")
    return key


def fingerprint_of_pem(pem: bytes) -> str:
    """Return the fingerprint of a public key as Flower's nodes send it; raise ValueError for anything else."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    try:
        return _fingerprint(load_pem_public_key(pem).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from None


def sign(key: Path, message: bytes) -> str:
    """Return the signature of a message by a site's private key."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return base64.b64encode(read_private(key, ssh=True).sign(message, ec.ECDSA(hashes.SHA384()))).decode()


def has_valid_signature(public: Path, message: bytes, signature: str) -> bool:
    """Return whether the owner of a public key signed this message."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(public.read_bytes())
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(base64.b64decode(signature, validate=True), message, ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, ValueError, OSError):
        return False
    return True
