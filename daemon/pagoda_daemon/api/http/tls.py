"""tls_context: certificate and key of the HTTP port, read once at the start. Called by `front.py` by way of `listener`."""

from __future__ import annotations

import ssl

from pagoda_contracts.launch import TlsConfig

from pagoda_daemon.nouns.errors import ConfigRejected


def tls_context(config: TlsConfig | None) -> ssl.SSLContext | None:
    """None without TLS; ConfigRejected names the file that cannot be used. TLS 1.2 is the oldest version that is spoken."""
    if config is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    files = config.cert_file if config.key_file is None else f"{config.cert_file} and {config.key_file}"
    try:
        # OpenSSL would ask the terminal for a password; an empty one fails instead.
        context.load_cert_chain(config.cert_file, config.key_file, password="")
    except ssl.SSLError as error:
        said = "a certificate and its private key in PEM, without a password"
        raise ConfigRejected(f"listen.tls: {files} must be {said}: {error.reason or error}") from error
    except OSError as error:
        raise ConfigRejected(f"listen.tls: {files} cannot be read: {error.strerror}") from error
    return context
