"""Versions of packages, without importing the packages or `importlib.metadata`: each import takes 30 ms or more."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder


def installed(package: str) -> str:
    """Returns the version of a package, as an import would find it; an empty string if there is no such package.

    The version is read from the name of the metadata folder beside the package.
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
        # There is no metadata, or metadata of several versions: the package itself states its version.
        try:
            module = __import__(package)
        except ImportError:
            return ""
    return str(getattr(module, "__version__", ""))
