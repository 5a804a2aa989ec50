"""Load a kernel file as its author wrote it: with its package, its sibling modules, and without the frameworks.

What an import statement of the kernel's files finds, in this order:
1. `nki...` and `neuronxcc...`: our modules (trnprof.nki.modules), whatever is installed.
2. Python's standard library.
3. The kernel's own code: siblings of a plain file, the whole package of a file that lies in one, and packages that lie
   in the folders above it, up to the project's root (a folder with .git or pyproject.toml).
4. numpy, ml_dtypes, scipy and typing_extensions as installed, and what the user allows by name.
5. Stand-ins for torch, jax and other frameworks (standins.py), even where they are installed.
Anything else is an ImportError that says whether it is missing or installed but not allowed.

A package's `__init__.py` that fails (it may import half a library) does not stop a kernel inside it: the package then
holds only what is imported from it by path, and the note says so.

This runs inside the guarded child process only (guard.py): loading runs the file's module-level code.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trnprof.errors import UsageError
from trnprof.nki.discovery import parse_source, read_source
from trnprof.nki.rewriting import Rewrite, apply_rewrites
from trnprof.nki.standins import STAND_IN_MODULES, StandInLoader, forget_loaded

REAL_THIRD_PARTY = frozenset({"numpy", "ml_dtypes", "scipy", "typing_extensions"})
"""Third-party modules that kernels compute with while they run: the real ones where installed, else stand-ins."""

OUR_MODULES = frozenset({"nki", "neuronxcc", "trnprof"})
"""Answered by trnprof.nki.modules, or trnprof itself (an inputs file may import trnprof.nki.inputs)."""

_TAKEN = sys.stdlib_module_names | OUR_MODULES | REAL_THIRD_PARTY
"""Names that a kernel's own file or package may have, but not under which it can be imported."""

_MAX_LEVELS_UP = 8


class KernelLoader:
    """Installs the import policy for one kernel file and loads modules under it."""

    def __init__(
        self, path: Path, *, rewrites: tuple[Rewrite, ...] = (), allowed: frozenset[str] = frozenset()
    ) -> None:
        """`path`: the kernel file; `rewrites`: changes to its assignments; `allowed`: more third-party modules."""
        self.path = path.resolve()
        self.rewrites = rewrites
        self.notes: list[str] = []
        """What the reader of a result should know of the loading: skipped `__init__` files."""
        self.root, self.module_name = _package_of(self.path, parse_source(read_source(path), path))
        self.roots = [self.root]
        self.above = _folders_above(self.path)
        self.stand_ins = StandInLoader()
        self._finder = _KernelFinder(self, REAL_THIRD_PARTY | allowed)

    def install(self) -> None:
        """Make this policy the process's; for the life of the process (a child process runs one kernel)."""
        sys.dont_write_bytecode = True
        forget_loaded(STAND_IN_MODULES - set(sys.stdlib_module_names))
        sys.meta_path.insert(0, self._finder)

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """While open, imports go by Python's own rules, with the folders of the user's files on the path."""
        sys.meta_path.remove(self._finder)
        added = [str(folder) for folder in self.roots if str(folder) not in sys.path]
        sys.path[:0] = added
        try:
            yield
        finally:
            sys.path[:] = [entry for entry in sys.path if entry not in added]
            sys.meta_path.insert(0, self._finder)

    def load(self) -> types.ModuleType:
        """The kernel file as a module, its module-level code run."""
        package, _, _ = self.module_name.rpartition(".")
        if "." in self.path.stem or (not package and self.path.stem in _TAKEN):
            # `v1.2`, `types`, `nki`: importing that name gives nothing, or something else.
            if package:
                importlib.import_module(package)
            safe = self.path.stem.replace(".", "_")
            return self._load_file(f"{package}._kernel_{safe}" if package else f"_kernel_{safe}", self.path)
        while True:
            try:
                return importlib.import_module(self.module_name)
            except ImportError as error:
                # A helper's `from ... import x` may reach above the package that the kernel file alone suggests.
                if "beyond top-level package" not in str(error) or not self._widen():
                    raise

    def load_beside(self, path: Path) -> types.ModuleType:
        """Another file (the inputs file) as a module of its own, under the same policy."""
        folder = path.resolve().parent
        if folder not in self.roots:
            self.roots.append(folder)
        return self._load_file(f"_inputs_{path.stem}", path.resolve())

    def _load_file(self, name: str, path: Path) -> types.ModuleType:
        loader = _SourceLoader(self, name, path)
        spec = importlib.util.spec_from_loader(name, loader, origin=str(path))
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        loader.exec_module(module)
        return module

    def display_name(self, path: Path) -> str:
        """How results name a file: relative to the folder its package or the kernel lies in, so that no machine's
        absolute paths enter them."""
        for folder in (*self.roots, *self.above):
            if path.is_relative_to(folder):
                return path.relative_to(folder).as_posix()
        return path.name

    def _widen(self) -> bool:
        """Take one more folder into the package; forget what was loaded of it."""
        if not self.root.name or self.root == self.root.parent:
            return False
        for name in [name for name in sys.modules if name.partition(".")[0] == self.module_name.partition(".")[0]]:
            del sys.modules[name]
        self.module_name = f"{self.root.name}.{self.module_name}"
        self.root = self.root.parent
        self.roots = [self.root, *(root for root in self.roots if root != self.root)]
        return True


class _KernelFinder(importlib.abc.MetaPathFinder):
    """The policy above, as the first entry of sys.meta_path."""

    def __init__(self, loader: KernelLoader, real: frozenset[str]) -> None:
        self.loader = loader
        self.real = real

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module of the kernel's own code or of a stand-in; None: let Python's own finders look."""
        root = fullname.partition(".")[0]
        if root in OUR_MODULES:
            return None
        if path is not None:
            if isinstance(getattr(sys.modules.get(root), "__loader__", None), StandInLoader):
                return self.loader.stand_ins.spec(fullname)
            return self._ours(importlib.machinery.PathFinder.find_spec(fullname, path))
        if root in sys.stdlib_module_names and root != "test":  # `test` is what projects call their own tests
            return None
        local = self._local(fullname, self.loader.roots)
        if local is not None:
            return local
        if root in self.real and importlib.machinery.PathFinder.find_spec(root) is not None:
            return None
        above = self._local(fullname, self.loader.above)
        if above is not None:
            return above
        if root in STAND_IN_MODULES or root in REAL_THIRD_PARTY:
            return self.loader.stand_ins.spec(fullname)
        if importlib.machinery.PathFinder.find_spec(root) is not None:
            raise ModuleNotFoundError(
                f"{root!r} is installed, but not on the list of modules a kernel may import here; "
                f"if the kernel needs it to build its DMAs, add --allow-import {root}",
                name=root,
            )
        raise ModuleNotFoundError(
            f"no module {root!r} beside the kernel, in the folders above it, or installed; "
            "run where its package lies, or put the module beside the kernel",
            name=root,
        )

    def _local(self, name: str, folders: Sequence[Path]) -> importlib.machinery.ModuleSpec | None:
        for folder in folders:
            spec = importlib.machinery.PathFinder.find_spec(name, [str(folder)])
            if spec is None:
                continue
            if spec.origin is None and not _holds_python(spec):
                continue
            return self._ours(spec)
        return None

    def _ours(self, spec: importlib.machinery.ModuleSpec | None) -> importlib.machinery.ModuleSpec | None:
        """The spec, read by our loader if it is a source file of the kernel's own code."""
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader) or spec.origin is None:
            return spec
        origin = Path(spec.origin)
        if any(origin.is_relative_to(folder) for folder in (*self.loader.roots, *self.loader.above)):
            spec.loader = _SourceLoader(self.loader, spec.name, origin)
        return spec


def _holds_python(spec: importlib.machinery.ModuleSpec) -> bool:
    """Does a folder without `__init__.py` hold Python (at one level or the next), or is it only called like a module?"""
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    return any(next(folder.glob("*.py"), None) or next(folder.glob("*/*.py"), None) for folder in folders)


class _SourceLoader(importlib.abc.InspectLoader):
    """Compiles one source file under its display name, with the rewrites if it is the kernel file; no byte code is kept."""

    def __init__(self, loader: KernelLoader, name: str, path: Path) -> None:
        self.loader = loader
        self.name = name
        self.path = path

    def get_source(self, fullname: str) -> str:
        return read_source(self.path)

    def get_filename(self, fullname: str) -> str:
        return str(self.path)

    def is_package(self, fullname: str) -> bool:
        return self.path.name == "__init__.py"

    def get_code(self, fullname: str) -> types.CodeType:
        source = self.get_source(fullname)
        display = self.loader.display_name(self.path)
        tree: ast.Module = parse_source(source, Path(display))
        if self.path == self.loader.path and self.loader.rewrites:
            tree = apply_rewrites(tree, self.loader.rewrites)
        # inspect.getsource looks in linecache under the code's file name; an entry without a time is never checked.
        linecache.cache[display] = (len(source), None, source.splitlines(keepends=True), display)
        return compile(tree, display, "exec", dont_inherit=True)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__file__ = str(self.path)
        code = self.get_code(module.__name__)
        if not self.is_package(module.__name__):
            exec(code, module.__dict__)
            return
        try:
            exec(code, module.__dict__)
        except Exception as error:
            if self.path.parent not in self.loader.path.parents:
                raise
            self.loader.notes.append(
                f"{self.loader.display_name(self.path)} was left out: it fails with {type(error).__name__}: "
                f"{str(error).splitlines()[0] if str(error) else 'no message'}"
            )


def find_callable(module: types.ModuleType, name: str) -> Any:
    """The kernel `name` of a loaded module; dotted names reach into classes and modules.

    Raises: UsageError if there is no such name or it cannot be called.
    """
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise UsageError(
                f"no kernel {name!r} in the file after loading it; run without --kernel to list what it holds"
            )
        value = getattr(value, part)
    if not callable(value):
        raise UsageError(f"{name!r} is a {type(value).__name__}, which cannot be called as a kernel; name a function")
    return value


def _package_of(path: Path, tree: ast.Module) -> tuple[Path, str]:
    """The folder to import from and the file's dotted name in it.

    A file lies in a package as far as `__init__.py` reaches up, and as far as its own relative imports do. A package
    whose name is taken (a folder called nki or test) is imported as part of the folder above it.
    """
    levels_needed = max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)
    names = [path.stem.replace(".", "_")]
    folder = path.parent
    while folder.name and (
        (folder / "__init__.py").is_file() or len(names) <= levels_needed or (len(names) > 1 and names[0] in _TAKEN)
    ):
        names.insert(0, folder.name)
        folder = folder.parent
    if path.name == "__init__.py" and len(names) > 1:
        names = names[:-1]
    return folder, ".".join(names)


def _folders_above(path: Path) -> list[Path]:
    """Folders from the file's up to its project's root, nearest first, each followed by its src folder."""
    folders: list[Path] = []
    for folder in path.parents[:_MAX_LEVELS_UP]:
        if folder == Path.home() or folder == folder.parent:
            break
        folders.append(folder)
        if (folder / "src").is_dir():
            folders.append(folder / "src")
        if (folder / ".git").exists() or (folder / "pyproject.toml").is_file():
            break
    return folders
