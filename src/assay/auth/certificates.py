"""Creates a private certificate authority, and certificates for an executor and its clients."""

import ipaddress
import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from assay.auth.tokens import read_private
from assay.contracts.errors import UsageError, require

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, CertificateBuilder

with require("making certificates", extra="executor"):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_BACKDATED: Final = timedelta(minutes=5)
"""Tolerance for clocks that are slightly behind."""
_AUTHORITY_DAYS: Final = 3650
_LONGEST_NAME: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Files of a certificate and its private key."""

    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class _Signer:
    certificate: "Certificate"
    key: ec.EllipticCurvePrivateKey


def make_authority(folder: Path) -> Path:
    """Create an authority in a folder unless there is one; return its certificate.

    Raises:
        UsageError: If the files cannot be written.
    """
    cert, key_file = folder / "ca.crt", folder / "ca.key"
    if cert.exists() and key_file.exists():
        return cert
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"Assay private authority {secrets.token_hex(4)}")
    builder = (
        _builder(name, name, key.public_key(), days=_AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
    )
    certificate = builder.sign(key, hashes.SHA256())
    _write(folder, {key_file: (_key_pem(key), 0o600), cert: (_pem(certificate), 0o644)})
    return cert


def make_server_certificate(folder: Path, names: tuple[str, ...], *, days: int) -> Pair:
    """Create a server certificate for an executor with these names and addresses.

    Raises:
        UsageError: If there is no authority, or the files cannot be written.
    """
    alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
    return _issue(
        folder, "server", names[0], ExtendedKeyUsageOID.SERVER_AUTH, alternatives, days=days
    )


def make_client_certificate(folder: Path, client: str, *, days: int) -> Pair:
    """Create a client certificate; its name identifies the client to an executor.

    Raises:
        UsageError: If there is no authority, or the files cannot be written.
    """
    if not client or "/" in client or client.startswith(".") or not client.isprintable():
        raise UsageError(f"not a name for a client: {client!r}")
    alternatives = x509.SubjectAlternativeName([x509.DNSName("client.invalid")])
    return _issue(
        folder,
        f"client-{client}",
        client,
        ExtendedKeyUsageOID.CLIENT_AUTH,
        alternatives,
        days=days,
    )


def _issue(
    folder: Path,
    file_name: str,
    subject: str,
    usage: x509.ObjectIdentifier,
    alternatives: x509.SubjectAlternativeName,
    *,
    days: int,
) -> Pair:
    signer = _load_authority(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(_name(subject), signer.certificate.subject, key.public_key(), days=days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(alternatives, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()),
            critical=False,
        )
    )
    certificate = builder.sign(signer.key, hashes.SHA256())
    pair = Pair(cert=folder / f"{file_name}.crt", key=folder / f"{file_name}.key")
    _write(folder, {pair.key: (_key_pem(key), 0o600), pair.cert: (_pem(certificate), 0o644)})
    return pair


def _load_authority(folder: Path) -> _Signer:
    key = serialization.load_pem_private_key(
        read_private(folder / "ca.key").encode(), password=None
    )
    certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{str(folder / 'ca.key')!r} is not a key of this authority")
    return _Signer(certificate, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, *, days: int
) -> "CertificateBuilder":
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _name(text: str) -> x509.Name:
    if len(text) > _LONGEST_NAME:
        raise UsageError(f"a name of more than {_LONGEST_NAME} characters: {text!r}")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError as error:
        raise UsageError(f"not a name of a server: {name!r}") from error


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: "Certificate") -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(folder: Path, files: dict[Path, tuple[bytes, int]]) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, (content, mode) in files.items():
            draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            draft.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write into {str(folder)!r}: {error.strerror}") from error
