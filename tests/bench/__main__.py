"""`make bench`: every benchmark module's table. Ratios against a peer or a floor in the same run, never absolute times."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path


def main(wanted: list[str]) -> None:
    """Run the modules named (all without any) and print their tables."""
    names = sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    for name in names:
        if name.startswith("_") or (wanted and name not in wanted):
            continue
        print(f"== {name}", flush=True)
        print(importlib.import_module(f"tests.bench.{name}").run(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
