"""The cluster's keys: two authorities, one certificate per component, one kubeconfig for each that asks the API.

Made once per state directory; without them no component believes another.
"""

import base64
import datetime
import ipaddress
import json
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.cluster.bed.places import API_IP, NODE, NODE_IP, Places

LIFETIME: Final = datetime.timedelta(days=3650)
SERVER_NAMES: Final = (
    "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
)  # fmt: skip
# name → organisation, common name: what RBAC knows the component by.
COMPONENTS: Final = {
    "apiserver": ("", "kube-apiserver"),
    "admin": ("system:masters", "admin"),
    "kubelet": ("system:nodes", f"system:node:{NODE}"),
    "controller-manager": ("", "system:kube-controller-manager"),
    "scheduler": ("", "system:kube-scheduler"),
    "proxy": ("", "system:kube-proxy"),
}

Key = ec.EllipticCurvePrivateKey
Authority = tuple[x509.Certificate, Key]


def make_certificates(places: Places) -> None:
    """The kubeconfig is written last: where it is, everything is."""
    if places.kubeconfig.exists():
        return
    places.pki.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, front = (_authority(places.pki, name) for name in ("ca", "front-ca"))
    for name, (organisation, common_name) in COMPONENTS.items():
        _issue(places.pki, name, _name(common_name, organisation), authority)
    _issue(places.pki, "front", _name("front-proxy"), front)
    _service_account_key(places.pki)
    for name in ("kubelet", "controller-manager", "scheduler", "proxy"):
        _write(places.etc / f"{name}.kubeconfig", kubeconfig(places.pki, name).encode())
    _write(places.kubeconfig, kubeconfig(places.pki, "admin").encode())


def kubeconfig(pki: Path, name: str) -> str:
    def data(file: str) -> str:
        return base64.b64encode((pki / file).read_bytes()).decode()

    cluster = {"server": f"https://{NODE_IP}:6443", "certificate-authority-data": data("ca.crt")}
    user = {"client-certificate-data": data(f"{name}.crt"), "client-key-data": data(f"{name}.key")}
    content: dict[str, Any] = {
        "apiVersion": "v1", "kind": "Config", "current-context": "bed",
        "clusters": [{"name": "bed", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": name}}],
    }  # fmt: skip
    return json.dumps(content, indent=1) + "\n"


def _authority(pki: Path, name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    builder = _builder(subject, subject, key).add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
    certificate = builder.add_extension(usage, True).sign(key, hashes.SHA256())
    _save(pki, name, certificate, key)
    return certificate, key


def _issue(pki: Path, name: str, subject: x509.Name, authority: Authority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    builder = _builder(subject, authority[0].subject, key).add_extension(x509.ExtendedKeyUsage(uses), False)
    if name == "apiserver":
        builder = builder.add_extension(x509.SubjectAlternativeName(_server_names()), False)
    _save(pki, name, builder.sign(authority[1], hashes.SHA256()), key)


def _builder(subject: x509.Name, issuer: x509.Name, key: Key) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - datetime.timedelta(minutes=5)).not_valid_after(now + LIFETIME)


def _name(common_name: str, organisation: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation)] if organisation else []
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _server_names() -> list[x509.GeneralName]:
    addresses = [x509.IPAddress(ipaddress.ip_address(each)) for each in (NODE_IP, API_IP, "127.0.0.1")]
    return [*addresses, *map(x509.DNSName, SERVER_NAMES)]


def _service_account_key(pki: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write(pki / "sa.key", _private(key))
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    _write(pki / "sa.pub", key.public_key().public_bytes(serialization.Encoding.PEM, form))


def _save(pki: Path, name: str, certificate: x509.Certificate, key: Key) -> None:
    _write(pki / f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM))
    _write(pki / f"{name}.key", _private(key))


def _private(key: Key | rsa.RSAPrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
