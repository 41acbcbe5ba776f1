"""Four-element dot products of 8-bit integers (`dot4`) in LLVM text, exact for every input.

In: operands. Out: the operand c + sums. Which instructions: `Target.int8_dot`. x86 without VNNI
splits bytes into even and odd 16-bit lanes and uses pmaddwd: unlike pmaddubsw it never saturates,
and the split of an operand is shared by all its uses.
"""

from __future__ import annotations

from collections.abc import Callable

from luminal.codegen.llvm_text import Emitter, Reg

__all__ = ["dot4"]

_PMADDWD = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}
_PMADDUBSW = {4: "ssse3.pmadd.ub.sw.128", 8: "avx2.pmadd.ub.sw", 16: "avx512.pmaddubs.w.512"}

# From a, b, c and how to read a to the result.
Step = Callable[[Reg, Reg, Reg, bool], Reg]


def dot4(a: Reg, b: Reg, c: Reg, unsigned: bool, small: bool) -> Reg:
    """c (i32) + dot products of 4 bytes; `unsigned` tells how to read a, `small` that its bytes are
    0..15: they are read as the target likes best."""
    step = _instruction(c.emitter, small)
    unsigned = c.emitter.x86 if small else unsigned
    largest = max(4, c.emitter.target.vector_bits // 32) if c.emitter.x86 else 4
    if step is None:
        return _portable(a, b, c, unsigned)
    parts, start = [], 0
    while start < c.lanes:
        width = largest
        while width > 4 and width > c.lanes - start:
            width //= 2
        used = min(width, c.lanes - start)
        pieces = (
            x.slice(per * start, per * used).widened(per * width)
            for x, per in ((a, 4), (b, 4), (c, 1))
        )
        parts.append(step(*pieces, unsigned).slice(0, used))
        start += used
    return c.emitter.concat(parts)


def _instruction(emitter: Emitter, small: bool) -> Step | None:
    kind = emitter.target.int8_dot
    if not emitter.x86:
        return _sdot if kind == "dotprod" else None
    return (
        _vnni if kind == "vnni" else _pmaddubsw if small and "ssse3" in emitter.flags else _pmaddwd
    )


def _call(name: str, result: Reg, *args: Reg) -> Reg:
    emitter = result.emitter
    return emitter.let(emitter.call(result.type, name, *args), result.element, result.lanes)


def _flipped(step: Callable[[Reg, Reg], Reg], a: Reg, c: Reg) -> Reg:
    """The dot product where `step` reads a with the wrong sign: of a ± 128, less that of ± 128."""
    other = a ^ -128
    correction = step(c.zero, a.like(-128))
    return step(c, other) - correction


def _vnni(a: Reg, b: Reg, c: Reg, unsigned: bool) -> Reg:
    def step(total: Reg, x: Reg) -> Reg:  # u8 times i8
        name = f"llvm.x86.avx512.vpdpbusd.{c.lanes * 32}"
        return _call(name, c, total, x.bits("i32"), b.bits("i32"))

    return step(c, a) if unsigned else _flipped(step, a, c)


def _sdot(a: Reg, b: Reg, c: Reg, unsigned: bool) -> Reg:
    def step(total: Reg, x: Reg) -> Reg:  # i8 times i8
        return _call("llvm.aarch64.neon.sdot.v4i32.v16i8", c, total, x, b)

    return _flipped(step, a, c) if unsigned else step(c, a)


def _pmaddwd(a: Reg, b: Reg, c: Reg, unsigned: bool) -> Reg:
    for x, y in zip(_split(a, unsigned), _split(b, False), strict=True):
        c = c + _call(f"llvm.x86.{_PMADDWD[c.lanes]}", c, x, y)
    return c


def _pmaddubsw(a: Reg, b: Reg, c: Reg, unsigned: bool) -> Reg:
    """Exact because 2 * 15 * 128 fits 16 bits."""
    pairs = _call(f"llvm.x86.{_PMADDUBSW[c.lanes]}", c.emitter.const(0, "i16", c.lanes * 2), a, b)
    return c + _call(f"llvm.x86.{_PMADDWD[c.lanes]}", c, pairs, pairs.like(1))


def _split(a: Reg, unsigned: bool) -> tuple[Reg, Reg]:
    """The even and the odd bytes as i16."""
    shift, pairs = "lshr" if unsigned else "ashr", a.bits("i16")
    return (pairs << 8).op(shift, 8), pairs.op(shift, 8)


def _portable(a: Reg, b: Reg, c: Reg, unsigned: bool) -> Reg:
    x, y = a.cast("zext" if unsigned else "sext", "i32"), b.cast("sext", "i32")
    products = x * y
    for k in range(4):
        c = c + products.slice(k, c.lanes, 4)
    return c
