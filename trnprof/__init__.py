"""trnprof: where a Trainium step's time goes, what a kernel's DMA traffic will be, and whether a change is faster."""

from pathlib import Path

from trnprof.version import __version__

__all__ = ["__version__"]

# In a checkout the subpackages analyzers/, engine/, templates/ and skills/ lie beside trnprof/ (an installed copy has
# them inside), so that the repository runs uninstalled; without pyproject.toml beside us this is an installed copy.
if (Path(__file__).parent.parent / "pyproject.toml").is_file():
    __path__.append(str(Path(__file__).parent.parent))
