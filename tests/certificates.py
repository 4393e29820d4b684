"""Certificates for tests: an authority, and what it signs for servers on this machine and their clients."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """A certificate authority; `path` is its certificate."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = _builder(self._name, self._name, self._key).add_extension(constraints, critical=True)
        self.path = folder / f"{name}.crt"
        self.path.write_bytes(_pem(self._certificate.sign(self._key, hashes.SHA256())))

    def issue(self, name: str = "localhost", address: str = "127.0.0.1") -> tuple[Path, Path]:
        """Write certificate and key for localhost and the address, over earlier ones of that name."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ip_address(address))]
        builder = _builder(subject, self._name, key).add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        certificate, secret = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        secret.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
        return certificate, secret


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
