"""Kernel files load as their authors wrote them. Loading changes the process, so each case runs in its own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

LOAD = """
import json, sys
from pathlib import Path
from trnprof.nki.loader import KernelLoader
from trnprof.nki.modules import install_nki_modules
with install_nki_modules():
    loader = KernelLoader(Path(sys.argv[1]), allowed=frozenset(sys.argv[3:]))
    loader.install()
    module = loader.load()
    value = eval(sys.argv[2], vars(module))
print(json.dumps([value, loader.notes, sorted(loader.stand_ins.imported)]))
"""


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def load(path: Path, expression: str, *allowed: str) -> tuple[object, list[str], list[str]]:
    result = subprocess.run(
        [sys.executable, "-c", LOAD, str(path), expression, *allowed], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    value, notes, stand_ins = json.loads(result.stdout)
    return value, notes, stand_ins


def failure(path: Path) -> str:
    result = subprocess.run([sys.executable, "-c", LOAD, str(path), "1"], capture_output=True, text=True, timeout=60)
    assert result.returncode != 0
    return result.stderr.strip().splitlines()[-1]


def test_a_plain_file_with_siblings_and_frameworks(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "kernel.py": """
                import torch, torch.nn.functional as F
                from jax import numpy as jnp
                import nki, nki.language as nl
                from neuronxcc.nki import isa
                import helper
                value = [helper.x, helper.name(), (lambda: 0).__code__.co_filename]
            """,
            "helper.py": "x = 3\ndef name():\n    return name.__code__.co_filename\n",
        },
    )
    value, notes, stand_ins = load(tmp_path / "kernel.py", "value")
    assert value == [3, "helper.py", "kernel.py"]
    assert notes == []
    assert stand_ins == ["jax", "torch"]


def test_a_file_in_a_package_loads_from_the_packages_root(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "src/lib/__init__.py": "",
            "src/lib/core/__init__.py": "from . import types\n",
            "src/lib/core/types.py": "x = 1\n",  # a name that the standard library has too
            "src/lib/core/kernels/__init__.py": "",
            "src/lib/core/kernels/k.py": """
                import types, enum
                from ..types import x
                from ...core.kernels import tiles
                from lib.core.types import x as same
                value = [x, same, tiles.y, types.__name__, (lambda: 0).__code__.co_filename]
            """,
            "src/lib/core/kernels/tiles.py": "y = 2\n",
        },
    )
    value, _, _ = load(tmp_path / "src/lib/core/kernels/k.py", "value")
    assert value == [1, 1, 2, "types", "lib/core/kernels/k.py"]


def test_relative_imports_without_init_files(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "pack/kernels/k.py": "from ..shared.tiles import y\nfrom . import sibling\nvalue = [y, sibling.deep]\n",
            "pack/shared/tiles.py": "y = 2\n",
            # the helper reaches one level above what the kernel file alone needs
            "pack/kernels/sibling.py": "from ...other.far import deep\n",
            "other/far.py": "deep = 5\n",
        },
    )
    assert load(tmp_path / "pack/kernels/k.py", "value")[0] == [2, 5]


def test_a_packages_init_that_fails_is_left_out_and_said_so(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "lib/__init__.py": "from .broken import everything\n",
            "lib/broken.py": "raise RuntimeError('half a library')\n",
            "lib/k.py": "from .good import x\n",
            "lib/good.py": "x = 4\n",
        },
    )
    value, notes, _ = load(tmp_path / "lib/k.py", "x")
    assert value == 4
    assert notes == ["lib/__init__.py was left out: it fails with RuntimeError: half a library"]


def test_packages_in_the_folders_above_up_to_the_projects_root(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "outside.py": "x = 'must not be found'\n",
            "project/pyproject.toml": "",
            "project/src/mylib/tiles.py": "x = 7\n",
            "project/examples/deep/k.py": "from mylib.tiles import x\n",
            "project/examples/deep/bad.py": "import outside\n",
        },
    )
    assert load(tmp_path / "project/examples/deep/k.py", "x")[0] == 7
    assert "no module 'outside'" in failure(tmp_path / "project/examples/deep/bad.py")


@pytest.mark.parametrize(
    "name", ["nki.py", "torch.py", "types.py", "numpy.py", "v1.2.py", "my-kernel.py", "test.py", "class.py"]
)
def test_file_names_that_mean_something_else(tmp_path: Path, name: str) -> None:
    write(tmp_path, {name: "import nki, numpy, types\nvalue = [nki.jit.__name__, len(numpy.__name__)]\n"})
    assert load(tmp_path / name, "value")[0] == ["jit", 5]


def test_a_package_called_like_ours(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "project/nki/__init__.py": "",
            "project/nki/kernels/__init__.py": "",
            "project/nki/kernels/k.py": "from .tiles import x\nimport nki.language as nl\n",
            "project/nki/kernels/tiles.py": "x = 6\n",
        },
    )
    assert load(tmp_path / "project/nki/kernels/k.py", "x")[0] == 6


def test_missing_and_forbidden_modules_say_which_it_is(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "missing.py": "import not_there\n",
            "installed.py": "import pip\n",
            "optional.py": "try:\n    import not_there\nexcept ImportError:\n    x = 1\n",
        },
    )
    assert "no module 'not_there' beside the kernel" in failure(tmp_path / "missing.py")
    assert "--allow-import pip" in failure(tmp_path / "installed.py")
    assert load(tmp_path / "optional.py", "x")[0] == 1
    assert load(tmp_path / "installed.py", "pip.__name__", "pip")[0] == "pip"


def test_no_byte_code_is_left_behind_and_source_can_be_inspected(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "lib/__init__.py": "",
            "lib/k.py": "import inspect\nfrom .helper import f\nvalue = [inspect.getsource(f), __file__]\n",
            "lib/helper.py": "def f():\n    return 1\n",
        },
    )
    value, _, _ = load(tmp_path / "lib/k.py", "value")
    assert value == ["def f():\n    return 1\n", str(tmp_path / "lib/k.py")]
    assert not list(tmp_path.rglob("__pycache__"))
