"""Which groups does the machine know that decide who may do what? units/sysusers.d makes them."""

import grp

ADMIN = "llamactl-admin"
"""May use the control socket."""
MODEL = "llamactl-model"
"""Instances, which may report."""


def acquire_group(name: str) -> int | None:
    """The id of a group; None where it does not exist, as before the installation of sysusers.d."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None
