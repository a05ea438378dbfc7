"""A configuration directory and model files to try it on."""

from pathlib import Path

from llamactl.config.heads import FaultReader, HeadReader, forget_faults, forget_heads
from llamactl.config.load import load_config
from llamactl.paths import Paths
from llamactl.settings import Config

GGUF = b"GGUF\x03\0\0\0" + bytes(16)
"""A whole file: no tensors, no metadata."""


class Tree:
    """Below one temporary directory: `etc` with the configuration, `models` with files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.models = root / "models"
        self.paths = Paths(config_dir=root / "etc", runtime_dir=root / "run", cache_dir=root / "cache")
        self.models.mkdir()
        self.paths.models_config_dir.mkdir(parents=True)

    def gguf(self, name: str, content: bytes = GGUF) -> Path:
        path = self.models / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def glob(self, text: str | bytes) -> None:
        self.paths.config_file.write_bytes(text.encode() if isinstance(text, str) else text)

    def file(self, name: str, text: str | bytes) -> Path:
        path = self.paths.models_config_dir / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def model(self, keys: str = "", name: str = "m") -> Path:
        """One model with a file that exists."""
        path = self.gguf(f"{name}.gguf")
        return self.file(f"{name}.toml", f'[models.{name}]\npath = "{path}"\n{keys}\n')

    def load(
        self,
        previous: Config | None = None,
        read_heads: HeadReader = forget_heads,
        read_faults: FaultReader = forget_faults,
    ) -> Config:
        return load_config(self.paths, previous, read_heads, read_faults)

    def complaints(self) -> list[str]:
        """All problems, with file names shortened to what a test can name."""
        return [str(problem).replace(f"{self.root}/", "") for problem in self.load().problems]
