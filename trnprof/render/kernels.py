"""What a kernel file holds: its kernels and what each needs, or its data-moving calls (--no-exec)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trnprof.nki.discovery import KernelKind, KernelSource, Parameter, Role
from trnprof.nki.sites import CallSite
from trnprof.render.dma_predict import markdown_table, path_end
from trnprof.render.dma_predict_json import fitting
from trnprof.render.markdown import escaped
from trnprof.render.text import printable, wrapped

_KIND_TEXT = {
    KernelKind.JIT: "kernel",
    KernelKind.PLAIN: "plain function that moves data",
    KernelKind.HOST: "host function that launches",
}
_SHOWN = 20


def kernels_json(kernels: tuple[KernelSource, ...], path: Path, *, full: bool) -> dict[str, Any]:
    """`result` when no inputs were given: the kernels, their parameters, a command each."""

    def with_kernels(count: int) -> dict[str, Any]:
        rows = [_kernel_json(kernel, path, full=full) for kernel in kernels[:count]]
        return {"kernels": rows, "kernels_rest_count": len(kernels) - count}

    return with_kernels(len(kernels)) if full else fitting(with_kernels, min(_SHOWN, len(kernels)))


def _kernel_json(kernel: KernelSource, path: Path, *, full: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": kernel.name,
        "kind": str(kernel.kind),
        "line": kernel.line,
        "needs": [_needs(parameter) for parameter in kernel.parameters if parameter.required],
        "command": kernel.command(path),
    }
    if full:
        row["optional"] = [_needs(parameter) for parameter in kernel.parameters if not parameter.required]
        row["launches"] = list(kernel.launches)
    return row


def _needs(parameter: Parameter) -> str:
    rank = f" of rank {parameter.rank}" if parameter.rank else ""
    role = {
        Role.TENSOR: f"tensor{rank}",
        Role.ARGUMENT: "value",
        Role.OBJECT: "object, from --inputs FILE.py",
        Role.UNKNOWN: "tensor or value",
    }[parameter.role]
    annotation = f": {parameter.annotation}" if parameter.annotation else ""
    default = f" = {parameter.default}" if parameter.default is not None else ""
    return f"{parameter.name}{annotation}{default} ({role})"


def kernels_text(kernels: tuple[KernelSource, ...], path: Path) -> str:
    """The list for a terminal: what each needs, and a command to run."""
    if not kernels:
        return (
            f"{path_end(path)}: no kernel found: no function under nki.jit, none that moves data with nki "
            "operations, none that launches kernel[grid](...)\n"
        )
    out = [f"{path_end(path)}: {len(kernels)} kernel{'s' if len(kernels) != 1 else ''}; name one and give its inputs"]
    for kernel in kernels:
        launches = f" {', '.join(kernel.launches)}" if kernel.launches else ""
        out += [
            "",
            f"{printable(kernel.name, 60)}  (line {kernel.line}, {_KIND_TEXT[kernel.kind]}{printable(launches, 60)})",
        ]
        required = [_needs(parameter) for parameter in kernel.parameters if parameter.required]
        optional = [_needs(parameter) for parameter in kernel.parameters if not parameter.required]
        if required:
            out.append(wrapped(printable(", ".join(required), 600), indent="            ", first="  needs     "))
        if optional:
            out.append(wrapped(printable(", ".join(optional), 600), indent="            ", first="  optional  "))
        out.append(f"  {printable(kernel.command(path), 1000)}")
    out += ["", "The shapes in the commands are examples; config objects come from --inputs FILE.py (see --help)."]
    return "\n".join(out) + "\n"


def kernels_markdown(kernels: tuple[KernelSource, ...], path: Path) -> str:
    """The list as Markdown."""
    rows = [
        [
            escaped(kernel.name),
            str(kernel.kind),
            str(kernel.line),
            "`" + printable(kernel.command(path), 1000).replace("`", "'") + "`",
        ]
        for kernel in kernels
    ]
    return (
        "\n".join([f"# Kernels of {escaped(path)}", "", *markdown_table(["kernel", "kind", "line", "command"], rows)])
        + "\n"
    )


def sites_json(sites: tuple[CallSite, ...], *, full: bool) -> dict[str, Any]:
    """`result` of --no-exec: the sites, as many as fit, and how many are left out."""

    def with_sites(count: int) -> dict[str, Any]:
        return {
            "executed": False,
            "site_count": len(sites),
            "sites": [_site_json(site) for site in sites[:count]],
            "sites_rest_count": len(sites) - count,
        }

    return with_sites(len(sites)) if full else fitting(with_sites, min(_SHOWN, len(sites)))


def _site_json(site: CallSite) -> dict[str, Any]:
    return {
        "line": site.line,
        "function": site.function,
        "in_kernel": site.in_kernel,
        "operation": site.operation,
        "destination": site.destination,
        "source": site.source,
        "dge_mode": site.dge_mode,
        "indirect": site.indirect,
        "masked": site.masked,
        "loops": [f"line {loop.line}: {loop.target} in {loop.iterates}" for loop in site.loops],
    }


def sites_text(sites: tuple[CallSite, ...], path: Path) -> str:
    """Data-moving calls for a terminal."""
    if not sites:
        return (
            f"{path_end(path)}: no call that moves data in the syntax tree (helpers in other files are not followed)\n"
        )
    out = [f"{path_end(path)}: {len(sites)} calls that move data (from the syntax tree; nothing was run)"]
    for site in sites:
        marks = [site.operation]
        if site.dge_mode:
            marks.append(f"dge_mode={site.dge_mode}")
        if site.indirect:
            marks.append("indirect")
        if site.masked:
            marks.append("masked")
        if not site.in_kernel:
            marks.append("in a helper")
        operands = " <- ".join(printable(part, 60) for part in (site.destination, site.source) if part)
        out.append(
            f"  line {site.line:<5} {printable(site.function or '(module)', 30)}: {printable(', '.join(marks), 60)}"
        )
        out.append(wrapped(operands, indent=" " * 15, first=" " * 13))
        out += [
            f"             in line {loop.line}: {printable(loop.target, 20)} in {printable(loop.iterates, 40)}"
            for loop in site.loops
        ]
    return "\n".join(out) + "\n"


def sites_markdown(sites: tuple[CallSite, ...], path: Path) -> str:
    """Data-moving calls as Markdown."""
    rows = [
        [
            str(site.line),
            escaped(site.function),
            escaped(site.operation),
            escaped(site.destination or ""),
            escaped(site.source or ""),
            escaped("; ".join(f"{loop.target} in {loop.iterates}" for loop in site.loops)),
        ]
        for site in sites
    ]
    header = ["line", "function", "operation", "destination", "source", "loops"]
    return "\n".join([f"# Calls that move data in {escaped(path)}", "", *markdown_table(header, rows)]) + "\n"
