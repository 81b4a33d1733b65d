"""Tuning records: what was measured, for which kernel, where, with which versions. Knows nothing of search."""

from tvmstack.store.database import Store, open_store
from tvmstack.store.exchange import Taken, export_records, import_records, merge_stores
from tvmstack.store.key import PROTOCOL, KeyContext
from tvmstack.store.leases import Claim
from tvmstack.store.record import Explanation, Record
from tvmstack.store.upkeep import Pruned, PruneRule, prune, stats

__all__ = [
    "PROTOCOL",
    "Claim",
    "Explanation",
    "KeyContext",
    "PruneRule",
    "Pruned",
    "Record",
    "Store",
    "Taken",
    "export_records",
    "import_records",
    "merge_stores",
    "open_store",
    "prune",
    "stats",
]
