"""Writes a package `torchvision` that can be imported and does nothing, into the folder named on the command line."""

import sys
from pathlib import Path

SOURCE = '''"""Stands in for torchvision, which is imported for images alone; any use of it fails."""
import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.0.0"


class Named(type):
    """Attributes are asked for when modules are imported, such as the members of an enumeration."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class Missing(metaclass=Named):
    def __init__(self, *args, **kwargs):
        raise ImportError("torchvision is not installed here; images and video are not supported")


class Stub(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Named(name, (Missing,), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("torchvision."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Finder())


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Named(name, (Missing,), {})
'''


def main() -> None:
    """Write the package."""
    folder = Path(sys.argv[1]) / "torchvision"
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text(SOURCE)


if __name__ == "__main__":
    main()
