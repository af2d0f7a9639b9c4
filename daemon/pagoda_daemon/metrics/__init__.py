"""What the front counts, and how it is reported: `counts` (per request), `tokens` (per step), `http`, `records` (the latest requests), and
`exposition`, the text of /metrics. Names, help and buckets come from contracts; nothing global is kept."""

from pagoda_daemon.metrics.counts import Counts, Slo
from pagoda_daemon.metrics.exposition import Build, Exposition
from pagoda_daemon.metrics.work import ModelWork

__all__ = ["Build", "Counts", "Exposition", "ModelWork", "Slo"]
