"""The page docs/aten.md: results of opinfo.py, and what becomes of every ATen overload.

In: rows and totals as Markdown. Out: the text of the page. An overload is compiled (in the table of
`frontend/torch/aten`), decomposed (by AOTAutograd into others: our table, PyTorch's composite
operators, or the functional form of a write), or it falls back to eager PyTorch.
"""

from collections import defaultdict

import torch
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel

from luminal.frontend.torch.aten import lookup
from luminal.frontend.torch.decompositions import table

HEAD = """# ATen operators

Written by `python benchmarks/opinfo.py --write`.

## OpInfo

PyTorch's own samples for every operator (`torch.testing._internal.common_methods_invocations`),
{dtypes}, at most {limit} a dtype, forward under `torch.compile(backend="luminal", fullgraph=True,
options={{"search": "off"}})`. A sample is right if dtype, shape and strides equal eager's, and the
values do within the usual tolerances or those of the database, or are about as close as eager's to
the result in double precision; writes to arguments are compared too. *fallback* is right as well,
but some operator ran in eager. Samples that eager or Dynamo itself refuses are not counted
({refused} of them: sparse tensors, results whose shape depends on data).

{totals}

{rows}

## Overloads

{counts}

| operator | compiled | decomposed | falls back |
|---|---|---|---|
{overloads}
"""


def status(overload: torch._ops.OpOverload, decomposed: object) -> str:
    """'compiled', 'decomposed' or 'falls back'."""
    if lookup(overload) is not None:
        return "compiled"
    if overload in decomposed or _is_composite(overload.name()):
        return "decomposed"
    functional = _functional(overload)
    if functional is not None and functional is not overload:
        return "falls back" if status(functional, decomposed) == "falls back" else "decomposed"
    return "falls back"


def _is_composite(name: str) -> bool:
    known = torch._C._dispatch_has_kernel(name)
    return known and has_kernel(name, "CompositeImplicitAutograd")


def _functional(overload: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The overload without writes that functionalization puts in place of this one."""
    packet = overload._overloadpacket
    name, space = packet.__name__, torch.ops.aten
    if not overload._schema.is_mutable:
        return None
    plain = getattr(space, name.removesuffix("_"), None)
    if plain is None:
        return None
    wanted = overload._overloadname.removesuffix("_out").removesuffix("out") or "default"
    return getattr(plain, wanted, None) if wanted in plain.overloads() else None


def overload_rows() -> tuple[str, str]:
    """(totals as a sentence, table rows), all overloads of the aten namespace."""
    decomposed, rows = table(), defaultdict(lambda: defaultdict(list))
    names = sorted({n.removeprefix("aten::") for n in torch._C._dispatch_get_all_op_names()
                    if n.startswith("aten::")})  # fmt: skip
    counts: dict[str, int] = defaultdict(int)
    for name in names:
        packet, _, overload = name.partition(".")
        found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if found is not None:
            state = status(found, decomposed)
            counts[state] += 1
            rows[packet][state].append(overload or "default")
    kinds = ("compiled", "decomposed", "falls back")
    lines = [
        f"| {packet} | " + " | ".join(", ".join(states[k]) for k in kinds) + " |"
        for packet, states in sorted(rows.items())
    ]
    total = ", ".join(f"{counts[k]} {k}" for k in kinds)
    return f"{sum(counts.values())} overloads: {total}.", "\n".join(lines)


def page(dtypes: str, limit: int, refused: int, totals: list[str], rows: list[str]) -> str:
    """The text of docs/aten.md."""
    counts, overloads = overload_rows()
    return HEAD.format(
        dtypes=dtypes.replace(",", ", "), limit=limit, refused=refused,
        totals="\n".join(f"- {t}" for t in totals), rows="\n".join(rows), counts=counts,
        overloads=overloads,
    )  # fmt: skip
