"""What did the administrator configure, and is it right?

`load_config` reads everything and never fails; `check_config` looks at the world besides: may an instance read its
files? Both return findings as values; `explain_unreadable` says of one model what is in the way. Nothing here talks to
systemd or loads a model.
"""

from llamactl.config.changes import describe_changes
from llamactl.config.check import check_config, explain_unreadable
from llamactl.config.heads import HeadCache, acquire_heads
from llamactl.config.load import load_config

__all__ = ["HeadCache", "acquire_heads", "check_config", "describe_changes", "explain_unreadable", "load_config"]
