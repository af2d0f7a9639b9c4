"""The gateway that calls a replica suspect or silent after ten minutes instead of one and three seconds, and dials anew after twenty: a
test of something else, whose replicas are in its own process, may be stopped for longer between two of its steps. Run as a script."""

from pagoda_contracts import names

PATIENCE_MS = 600_000

if __name__ == "__main__":
    names.STATE_SUSPECT_MS = names.STATE_DEAD_MS = PATIENCE_MS  # type: ignore[misc]
    from pagoda_gateway.__main__ import main

    main()
