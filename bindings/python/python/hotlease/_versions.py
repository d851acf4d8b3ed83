"""Versions of packages, without importing them or `importlib.metadata`: each takes 30 ms and more."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder


def installed(package: str) -> str:
    """Returns the version of a package that would be imported; empty: there is none.

    Read from the name of its metadata folder, which is beside the package and contains the version.
    """
    module = sys.modules.get(package)
    if module is None:
        spec = PathFinder.find_spec(package)
        if spec is None or not spec.origin:
            return ""
        folder = os.path.dirname(spec.origin)
        if spec.submodule_search_locations:
            folder = os.path.dirname(folder)
        try:
            names = os.listdir(folder)
        except OSError:
            names = []
        # PACKAGE-VERSION.dist-info, as pip writes it; Linux distributions also have PACKAGE-VERSION.egg-info.
        names = [name for name in names if name.startswith(f"{package}-") and name.endswith((".dist-info", ".egg-info"))]
        if len(names) == 1:
            return names[0][len(package) + 1 :].removesuffix(".dist-info").removesuffix(".egg-info").partition("-")[0]
        # There is no metadata, or that of several versions: the version is what the package itself says.
        try:
            module = __import__(package)
        except ImportError:
            return ""
    return str(getattr(module, "__version__", ""))
