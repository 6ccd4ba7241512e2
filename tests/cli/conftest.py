"""What the tests of the command line share: keys of an officer."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@pytest.fixture
def keys(tmp_path):
    """Files of a private key without and with a password, and of its public key, as ssh-keygen writes them."""
    key = Ed25519PrivateKey.generate()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    secret = serialization.BestAvailableEncryption(b"secret")
    Path("officer").write_bytes(key.private_bytes(*form, serialization.NoEncryption()))
    Path("locked").write_bytes(key.private_bytes(*form, secret))
    Path("officer.pub").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
