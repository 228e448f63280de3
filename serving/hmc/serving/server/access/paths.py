"""Which bundles a reload may load: those below one folder."""

from __future__ import annotations

from pathlib import Path

from hmc.artifact.errors import PermissionDeniedError


def check_below(root: Path, bundle: Path) -> None:
    """Raises PermissionDeniedError unless `bundle` lies below `root`, after symbolic links of both are followed.

    It reads nothing of the bundle, and the error is the same whether there is one or not.
    """
    try:
        inside = bundle.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError, ValueError):  # a circle of links; a character that no path has
        inside = False
    if not inside:
        raise PermissionDeniedError(
            f"bundle {bundle} is not below {root}, the folder that bundles may be loaded from: put it there, or start "
            "the server with another --bundle-root"
        )
