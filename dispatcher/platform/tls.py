"""TLS contexts: TLS 1.2 and later, HTTP/1.1 by ALPN, and verified certificates of pools."""

from __future__ import annotations

import ssl

from dispatcher.errors import ConfigError

ALPN_PROTOCOLS = ["http/1.1"]


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return the context for client connections. Raises ConfigError.

    certificate: PEM file with the certificate and its chain.
    key: PEM file with the private key; empty if it is in the certificate's file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(ALPN_PROTOCOLS)
    load_certificate(context, certificate, key)
    return context


def load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Use this certificate for new connections. Raises ConfigError, and the context keeps its old certificate."""
    try:
        # A trial context first, because a failed load can leave a certificate without its key behind.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key or None, _no_password)
        context.load_cert_chain(certificate, key or None, _no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(f"tls: cannot use {certificate}{' and ' + key if key else ''}: {_reason(error)}") from error


def client_context(ca: str, verify: bool) -> ssl.SSLContext:
    """Return the context for connections to a pool. Raises ConfigError.

    ca: PEM file with the authorities to trust; empty for those of the system.
    verify: False accepts any certificate.
    """
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except (OSError, ValueError) as error:
        raise ConfigError(f"ca: cannot use {ca}: {_reason(error)}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(ALPN_PROTOCOLS)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _no_password() -> str:
    """Refuse an encrypted key; without this callback OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted, and the service cannot ask for a password")


def _reason(error: OSError | ValueError) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
