"""What did the administrator configure, and is it right?

`load_config` reads everything and never fails; `check_config` looks at the world besides: may an instance read its
files? Both return findings as values. Nothing here talks to systemd or loads a model.
"""

from llamactl.config.changes import describe_changes
from llamactl.config.check import check_config
from llamactl.config.load import load_config

__all__ = ["check_config", "describe_changes", "load_config"]
