"""Tuning records: what was measured, for which kernel, where, with which versions. Knows nothing of search."""

from tvmstack.store.database import Store, open_store
from tvmstack.store.key import PROTOCOL, KeyContext
from tvmstack.store.record import Explanation, Record

__all__ = ["PROTOCOL", "Explanation", "KeyContext", "Record", "Store", "open_store"]
