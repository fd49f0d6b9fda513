"""Measures which chunk_size a MuJoCo thread pool should use, once, and remembers it.

The public names, imported when they are first used: `import tuner` costs nothing, and a hit
in the database does not load what only a measurement needs.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing's own takes longer to import than everything else here
if TYPE_CHECKING:
    from tuner.api import explain, resolve_chunk_size, tune_pool
    from tuner.cache import load_cache, store_cache
    from tuner.candidates import filter_candidates, make_candidates
    from tuner.device import device_fingerprint
    from tuner.lock import file_lock
    from tuner.model_facts import model_signature
    from tuner.paths import cache_path
    from tuner.racing.bench import benchmark_chunk_sizes
    from tuner.racing.race import race_chunk_sizes
    from tuner.racing.verdict import select_chunk_size
    from tuner.workload import make_cache_key

_HOMES = {
    "benchmark_chunk_sizes": "tuner.racing.bench",
    "cache_path": "tuner.paths",
    "device_fingerprint": "tuner.device",
    "explain": "tuner.api",
    "file_lock": "tuner.lock",
    "filter_candidates": "tuner.candidates",
    "load_cache": "tuner.cache",
    "make_cache_key": "tuner.workload",
    "make_candidates": "tuner.candidates",
    "model_signature": "tuner.model_facts",
    "race_chunk_sizes": "tuner.racing.race",
    "resolve_chunk_size": "tuner.api",
    "select_chunk_size": "tuner.racing.verdict",
    "store_cache": "tuner.cache",
    "tune_pool": "tuner.api",
}

__all__ = [
    "__version__",
    "benchmark_chunk_sizes",
    "cache_path",
    "device_fingerprint",
    "explain",
    "file_lock",
    "filter_candidates",
    "load_cache",
    "make_cache_key",
    "make_candidates",
    "model_signature",
    "race_chunk_sizes",
    "resolve_chunk_size",
    "select_chunk_size",
    "store_cache",
    "tune_pool",
]


def __getattr__(name: str) -> object:
    """Load a public name from its module at its first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
