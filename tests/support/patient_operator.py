"""The operator that replaces one replica in EVERY_S seconds instead of in two minutes, which a test on a slow machine may outlast. Run as a
script."""

import os

from pagoda_operator import health
from pagoda_operator.__main__ import main

if __name__ == "__main__":
    health.REPLACE_EVERY_S = float(os.environ["EVERY_S"])  # type: ignore[misc]
    main()
