"""Where are the sockets, the configuration and the caches?

Everything below the runtime directory outlives each of the processes (tmpfiles.d makes it). Sockets that are
bound again after a restart sit in directories of their own, because units get the directory bound into their view:
a bound file would go on showing the old socket. Each path can be moved by an environment variable, which is how
tests run several supervisors side by side.
"""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Paths:
    """The directories of one llamactl, and what lies in them."""

    runtime_dir: Path = Path("/run/llamactl")
    config_dir: Path = Path("/etc/llamactl")
    cache_dir: Path = Path("/var/cache/llamactl")

    @property
    def http_socket(self) -> Path:
        return self.runtime_dir / "http.sock"

    @property
    def control_socket(self) -> Path:
        return self.runtime_dir / "control" / "control.sock"

    @property
    def report_socket(self) -> Path:
        return self.runtime_dir / "report" / "report.sock"

    @property
    def suspects_file(self) -> Path:
        """Where the supervisor notes whose message it has in hand: after a crash that one is blamed."""
        return self.runtime_dir / "report-in-hand"

    @property
    def models_dir(self) -> Path:
        return self.runtime_dir / "models"

    @property
    def config_file(self) -> Path:
        return self.config_dir / "llamactl.toml"

    @property
    def models_config_dir(self) -> Path:
        return self.config_dir / "models.d"

    def instance_dir(self, slug: str) -> Path:
        """The directory of one instance's socket, which is bound into its unit."""
        return self.models_dir / slug

    def instance_socket(self, slug: str) -> Path:
        """The socket on which one instance serves."""
        return self.models_dir / slug / "http.sock"


def acquire_paths(environ: dict[str, str] | None = None) -> Paths:
    """The paths of this process: the defaults, moved by LLAMACTL_RUNTIME_DIR, LLAMACTL_CONFIG_DIR and
    LLAMACTL_CACHE_DIR.
    """
    env = os.environ if environ is None else environ
    default = Paths()
    return Paths(
        runtime_dir=Path(env.get("LLAMACTL_RUNTIME_DIR") or default.runtime_dir),
        config_dir=Path(env.get("LLAMACTL_CONFIG_DIR") or default.config_dir),
        cache_dir=Path(env.get("LLAMACTL_CACHE_DIR") or default.cache_dir),
    )
