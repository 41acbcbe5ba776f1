"""Four-element dot products of 8-bit integers (`dot4`) in LLVM text, exact for every input.

In: an Emitter and operands. Out: the operand c + sums. Which instructions: `Target.int8_dot`.
x86 without VNNI splits bytes into even and odd 16-bit lanes and uses pmaddwd: unlike pmaddubsw it
never saturates, and the split of an operand is shared by all its uses.
"""

from __future__ import annotations

from luminal.codegen.llvm_types import Emitter, vector

__all__ = ["dot4"]

_PMADDWD = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}


def dot4(emitter: Emitter, lanes: int, unsigned: bool, small: bool, a: str, b: str, c: str) -> str:
    """c (i32, `lanes`) + dot products of 4 bytes; `unsigned` tells how to read a, `small` that it
    is 0..15 in every byte."""
    kind = emitter.target.int8_dot
    if kind == "dotprod" and not emitter.x86:
        step, largest, unsigned = _dotprod, 4, unsigned and not small
    elif emitter.x86:
        step = _vnni if kind == "vnni" else _pmaddwd
        if small and step is _pmaddwd and "ssse3" in emitter.flags:
            step = _pmaddubsw
        largest = max(4, emitter.target.vector_bits // 32)
    else:
        return _portable(emitter, lanes, unsigned, a, b, c)
    parts, start = [], 0
    while start < lanes:
        width = largest
        while width > 4 and width > lanes - start:
            width //= 2
        used = min(width, lanes - start)
        pieces = [
            _piece(emitter, element, per * lanes, per * start, per * used, per * width, text)
            for element, per, text in (("i8", 4, a), ("i8", 4, b), ("i32", 1, c))
        ]
        result = step(emitter, width, unsigned, *pieces)
        parts.append((emitter.let(emitter.slice("i32", width, result, 0, used)), used))
        start += used
    return emitter.concat("i32", parts)


def _piece(
    emitter: Emitter, element: str, lanes: int, start: int, used: int, width: int, text: str
) -> str:
    part = emitter.let(emitter.slice(element, lanes, text, start, used))
    return emitter.widen(element, part, used, width)


def _vnni(emitter: Emitter, width: int, unsigned: bool, a: str, b: str, c: str) -> str:
    """vpdpbusd takes u8 times i8; a signed a is a + 128 as u8, minus 128 times the sum of b."""
    kind, words = vector("i8", width * 4), vector("i32", width)
    name = f"llvm.x86.avx512.vpdpbusd.{width * 32}"

    def step(total: str, x: str) -> str:
        x = emitter.let(f"bitcast {kind} {x} to {words}")
        y = emitter.let(f"bitcast {kind} {b} to {words}")
        return emitter.let(emitter.call(words, name, (words, total), (words, x), (words, y)))

    if unsigned:
        return step(c, a)
    flipped = emitter.let(f"xor {kind} {a}, splat (i8 -128)")
    correction = step("zeroinitializer", "splat (i8 -128)")
    total = step(c, flipped)
    return emitter.let(f"sub {words} {total}, {correction}")


def _pmaddwd(emitter: Emitter, width: int, unsigned: bool, a: str, b: str, c: str) -> str:
    words = vector("i32", width)
    shorts = vector("i16", width * 2)
    total = c
    even_a, odd_a = _split(emitter, width, unsigned, a)
    even_b, odd_b = _split(emitter, width, False, b)
    for x, y in ((even_a, even_b), (odd_a, odd_b)):
        call = emitter.call(words, f"llvm.x86.{_PMADDWD[width]}", (shorts, x), (shorts, y))
        total = emitter.let(f"add {words} {total}, {emitter.let(call)}")
    return total


def _pmaddubsw(emitter: Emitter, width: int, unsigned: bool, a: str, b: str, c: str) -> str:
    """Exact because 2 * 15 * 128 fits 16 bits."""
    words, shorts, bytes_ = vector("i32", width), vector("i16", width * 2), vector("i8", width * 4)
    first = {4: "ssse3.pmadd.ub.sw.128", 8: "avx2.pmadd.ub.sw", 16: "avx512.pmaddubs.w.512"}[width]
    pairs = emitter.let(emitter.call(shorts, f"llvm.x86.{first}", (bytes_, a), (bytes_, b)))
    call = emitter.call(words, f"llvm.x86.{_PMADDWD[width]}", (shorts, pairs),
                        (shorts, "splat (i16 1)"))  # fmt: skip
    return emitter.let(f"add {words} {c}, {emitter.let(call)}")


def _split(emitter: Emitter, width: int, unsigned: bool, a: str) -> tuple[str, str]:
    """The even and the odd bytes as i16."""
    shorts = vector("i16", width * 2)
    shift = "lshr" if unsigned else "ashr"
    pairs = emitter.let(f"bitcast {vector('i8', width * 4)} {a} to {shorts}")
    moved = emitter.let(f"shl {shorts} {pairs}, splat (i16 8)")
    even = emitter.let(f"{shift} {shorts} {moved}, splat (i16 8)")
    return even, emitter.let(f"{shift} {shorts} {pairs}, splat (i16 8)")


def _dotprod(emitter: Emitter, width: int, unsigned: bool, a: str, b: str, c: str) -> str:
    """NEON sdot; an unsigned a is a - 128 as i8, plus 128 times the sum of b."""
    kind, words = vector("i8", 16), vector("i32", 4)
    name = "llvm.aarch64.neon.sdot.v4i32.v16i8"

    def step(total: str, x: str) -> str:
        return emitter.let(emitter.call(words, name, (words, total), (kind, x), (kind, b)))

    if not unsigned:
        return step(c, a)
    correction = step("zeroinitializer", "splat (i8 -128)")
    total = step(c, emitter.let(f"xor {kind} {a}, splat (i8 -128)"))
    return emitter.let(f"sub {words} {total}, {correction}")


def _portable(emitter: Emitter, lanes: int, unsigned: bool, a: str, b: str, c: str) -> str:
    count = lanes * 4
    kind, wide, words = vector("i8", count), vector("i32", count), vector("i32", lanes)
    x = emitter.let(f"{'zext' if unsigned else 'sext'} {kind} {a} to {wide}")
    y = emitter.let(f"sext {kind} {b} to {wide}")
    products = emitter.let(f"mul {wide} {x}, {y}")
    total = c
    for k in range(4):
        order = tuple(range(k, count, 4))
        if lanes == 1:
            part = emitter.let(emitter.slice("i32", count, products, k, 1))
        else:
            part = emitter.let(emitter.shuffle("i32", count, products, "poison", order))
        total = emitter.let(f"add {words} {total}, {part}")
    return total
