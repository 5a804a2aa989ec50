"""Documents that are kept in step with the code by a test."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from trnprof.finding_codes import FINDING_CODES
from trnprof.findings import DATA_QUALITY_CODES
from trnprof.render.codes import codes_markdown

ROOT = Path(__file__).parent.parent


def test_codes_page_is_the_registry() -> None:
    assert (ROOT / "docs/codes.md").read_text(encoding="utf-8") == codes_markdown(), "make docs"


def test_every_code_used_is_registered() -> None:
    used = set()
    for folder in ("trnprof", "analyzers"):
        for path in (ROOT / folder).rglob("*.py"):
            used |= set(re.findall(r"\bDQ\d{3}\b", path.read_text(encoding="utf-8")))
    assert used == set(DATA_QUALITY_CODES)


def test_every_finding_raised_is_registered() -> None:
    text = (ROOT / "analyzers/findings.py").read_text(encoding="utf-8")
    assert set(re.findall(r'"([A-Z]{2,4}\d{3})"', text)) == set(FINDING_CODES)


def test_packages_listed_are_the_packages_there() -> None:
    """pyproject.toml names each package, since the top-level folders are mapped; a forgotten one would not install."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    mapping = {folder: name for name, folder in setuptools["package-dir"].items()}
    found = set()
    for top, name in mapping.items():
        for init in (ROOT / top).rglob("__init__.py"):
            below = init.parent.relative_to(ROOT / top).parts
            found.add(".".join([name, *below]))
    assert found == set(setuptools["packages"])


def test_structure_page_names_every_folder() -> None:
    text = (ROOT / "docs/structure.md").read_text(encoding="utf-8")
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    for name in setuptools["packages"]:
        folder = name.removeprefix("trnprof.").replace(".", "/") if name != "trnprof" else "trnprof"
        assert f"{folder.rpartition('/')[2]}/" in text, f"docs/structure.md does not mention {folder}/"


def test_readme_transcript_is_what_the_command_prints(captures: Path) -> None:
    """The block after `<!-- transcript: NAME -->` is the start of `trnprof anatomy step.ntff` in that capture's folder."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- transcript: (\w+) -->\n```\n\$ (trnprof [^\n]+)\n(.*?)\n```", readme, re.DOTALL)
    assert found is not None
    name, command, printed = found.groups()
    result = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=captures / name,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert result.stdout.startswith(printed + "\n"), "make the README's transcript anew"


def test_the_demos_transcript_is_the_readmes() -> None:
    from trnprof.demo import real_capture_transcript

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"```\n{real_capture_transcript()}```" in readme


def test_relative_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_values_page_has_every_code_and_its_advice() -> None:
    from trnprof.nki.value_codes import VALUE_CODES
    from trnprof.nki.values.registry import NOT_EVALUATED

    text = (ROOT / "docs/nki-run.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (VAL\d{3}) \| (.+) \|$", text, re.MULTILINE))
    assert rows == {code: f"{entry.title} | {entry.advice}" for code, entry in VALUE_CODES.items()}
    for _, name in NOT_EVALUATED:
        assert f".{name}`" in text
