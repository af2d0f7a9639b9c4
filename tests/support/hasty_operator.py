"""The operator with its patience for silent watches divided by HASTE. Run as a script."""

import os

import kopf
from pagoda_operator import check, handlers, probes, silence
from pagoda_operator.__main__ import main

HASTE = float(os.environ["HASTE"])
configure = handlers.configure


def hasty(settings: kopf.OperatorSettings) -> None:
    configure(settings)
    assert settings.watching.inactivity_timeout is not None
    settings.watching.inactivity_timeout /= HASTE


if __name__ == "__main__":
    handlers.configure = hasty
    probes.MAX_WATCH_AGE /= HASTE  # type: ignore[misc]
    silence.PATIENCE /= HASTE  # type: ignore[misc]
    check.PATIENCE /= HASTE  # type: ignore[misc,attr-defined]
    main()
