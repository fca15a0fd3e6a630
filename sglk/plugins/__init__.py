"""Chip plugins: who offers which backend, and how it is loaded."""

from sglk.plugins.claims import BackendFactory, backend_names, plugin_warnings, register_backend, unknown_backend
from sglk.plugins.load import create_backend, load_backend

__all__ = [
    "BackendFactory",
    "backend_names",
    "create_backend",
    "load_backend",
    "plugin_warnings",
    "register_backend",
    "unknown_backend",
]
