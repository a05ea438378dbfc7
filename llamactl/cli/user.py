"""Who has to join a group so that this works next time?

The effective user: LOGNAME and USER, which the environment hands on, still name root after `runuser` and `setpriv`.
Root stands for whoever became root.
"""

import grp
import os
import pwd


def find_user() -> str:
    """A name for `usermod`; "USER" where nobody can be named."""
    name = _get_name(os.geteuid())
    if name == "root":
        name = os.environ.get("SUDO_USER") or _get_login() or name
    return name or "USER"


def _get_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a user id without an entry
        return ""


def _get_login() -> str:
    try:
        return os.getlogin()
    except OSError:  # no terminal
        return ""


def suggest_group(group: str) -> str:
    """What makes the user a member, or lets a member count as one."""
    user = find_user()
    try:
        members = grp.getgrnam(group).gr_mem
    except KeyError:  # a machine without this group; `usermod` says so
        members = []
    if user in members:
        return f"log in again: {user} is a member of {group}, but was not yet when this session began"
    return f"join the group: sudo usermod -aG {group} {user}, then log in again"
