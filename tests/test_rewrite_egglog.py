"""Every equality that our rules derive follows from their equations in another e-graph, egglog.

Our rules take products and sums apart on demand; egglog gets the bare equations with commutativity
and associativity, and has to prove each pair of terms equal that our e-graph holds in one class.
"""

from __future__ import annotations

import pytest

from luminal.ir.expr import Var
from luminal.ir.term import REDUCTIONS, Term
from tests.test_rewrite_rules import CASES, I, J, K, _values

bindings = pytest.importorskip("egglog.bindings", reason="egglog is not installed")

AXES = {I: 1, J: 2, K: 4}
THEORY = """
(datatype T (Leaf String i64) (Num f64) (Add T T) (Mul T T) (Exp2 T) (Recip T)
  (Sum i64 T) (Max i64 T) (RSum i64 T T) (WSum i64 T))
(function fv (T) i64 :merge (& old new))
(rule ((= e (Leaf n m))) ((set (fv e) m)))
(rule ((= e (Num x))) ((set (fv e) 0)))
(rule ((= e (Add a b)) (= x (fv a)) (= y (fv b))) ((set (fv e) (| x y))))
(rule ((= e (Mul a b)) (= x (fv a)) (= y (fv b))) ((set (fv e) (| x y))))
(rule ((= e (Exp2 a)) (= x (fv a))) ((set (fv e) x)))
(rule ((= e (Recip a)) (= x (fv a))) ((set (fv e) x)))
(rule ((= e (Sum k a)) (= x (fv a))) ((set (fv e) (& x (^ k 7)))))
(rule ((= e (Max k a)) (= x (fv a))) ((set (fv e) (& x (^ k 7)))))
(rule ((= e (WSum k a)) (= x (fv a))) ((set (fv e) (& x (^ k 7)))))
(rule ((= e (RSum k a b)) (= x (fv a)) (= y (fv b))) ((set (fv e) (& (| x y) (^ k 7)))))

(rewrite (Mul a b) (Mul b a))
(rewrite (Mul a (Mul b c)) (Mul (Mul a b) c))
(rewrite (Add a b) (Add b a))
(rewrite (Add a (Add b c)) (Add (Add a b) c))
(rewrite (Mul (Num 1.0) a) a)
(rewrite (Add (Num 0.0) a) a)
(rewrite (Mul (Num x) (Num y)) (Num (* x y)))
(rewrite (Add (Num x) (Num y)) (Num (+ x y)))
(rewrite (Mul (Num x) (Add a b)) (Add (Mul (Num x) a) (Mul (Num x) b)))
(rewrite (Add (Mul (Num x) a) (Mul (Num y) a)) (Mul (Num (+ x y)) a))
(rule ((= e (Add a (Mul (Num y) a)))) ((union e (Mul (Num (+ 1.0 y)) a))))
(rewrite (Mul (Num 0.0) a) (Num 0.0))
(rewrite (Exp2 (Num 0.0)) (Num 1.0))

; R1
(rule ((= e (Sum k (Mul f r))) (= 0 (& k (fv f)))) ((union e (Mul f (Sum k r)))))
(rule ((= e (RSum k x (Mul f r))) (= 0 (& k (fv f)))) ((union e (Mul f (RSum k x r)))))
(rule ((= e (RSum k x f)) (= 0 (& k (fv f)))) ((union e (Mul f (RSum k x (Num 1.0))))))
; R2
(rule ((= e (Sum 2 f)) (= 0 (& 2 (fv f)))) ((union e (Mul (Num 8.0) f))))
(rule ((= e (Max 2 f)) (= 0 (& 2 (fv f)))) ((union e f)))
; R3, R4
(rule ((= e (Max k (Mul (Num s) x))) (> s 0.0)) ((union e (Mul (Num s) (Max k x)))))
(rule ((= e (Max k (Add x f))) (= 0 (& k (fv f)))) ((union e (Add (Max k x) f))))
; R5
(rule ((= e (Sum k (Mul (Exp2 x) v)))) ((union e (Mul (Exp2 (Max k x)) (RSum k x v)))))
(rule ((= e (Sum k (Exp2 x)))) ((union e (Mul (Exp2 (Max k x)) (RSum k x (Num 1.0))))))
(rule ((= e (RSum k (Add x f) v)) (= 0 (& k (fv f)))) ((union e (RSum k x v))))
(rewrite (Mul (Exp2 a) (Exp2 b)) (Exp2 (Add a b)))
(rule ((= e (Exp2 (Add a b)))) ((union e (Mul (Exp2 a) (Exp2 b)))))
; R6, for the one size that the cases use
(rule ((= e (Sum 2 (Mul d d))) (= d (Add x (Mul (Num -0.125) (Sum 2 x))))) ((union e (WSum 2 x))))
; quotients
(rewrite (Recip (Mul a b)) (Mul (Recip a) (Recip b)))
(rule ((= e (Mul (Exp2 a) (Recip (Exp2 a))))) ((union e (Num 1.0))))
"""
OPS = {"add": "Add", "mul": "Mul", "exp2": "Exp2", "recip": "Recip"}
NAMES = {"sum": "Sum", "rmax": "Max", "rsum": "RSum", "wsum": "WSum"}
PURE = {*OPS, *NAMES, "load", "const"}
PROVED = (
    "factor_leaves_sum", "factor_leaves_weighted_sum", "sum_of_invariant",
    "maximum_of_invariant", "constant_leaves_maximum",
    "sum_of_powers", "sum_of_powers_masked",
    "shares", "shares_scaled", "squares_from_mean", "common_power_cancels",
)  # fmt: skip


def mask(axes: frozenset[Var] | tuple[Var, ...]) -> int:
    return sum(AXES[a] for a in axes if a in AXES)


def text(t: Term) -> str:
    """The term in egglog's language."""
    if t.op == "const":
        return f"(Num {float(t.value)!r})"  # type: ignore[arg-type]
    if t.op == "load":
        return f'(Leaf "{t.buffer}" {mask(t.free)})'
    args = " ".join(text(a) for a in t.args)
    if len(t.args) == 3:  # a scaled rsum: the same in the reals
        x, scale, value = map(text, t.args)
        args = f"(Mul {scale} {x}) {value}"
    if t.op in REDUCTIONS:
        return f"({NAMES[t.op]} {mask(t.axes)} {args})"
    return f"({OPS[t.op]} {args})"


def pure(t: Term) -> bool:
    return t.op in PURE and all(pure(a) for a in t.args)


def proves(pairs: list[tuple[Term, Term]], rounds: int) -> list[tuple[Term, Term]]:
    """The pairs that egglog cannot prove equal in so many rounds."""
    graph = bindings.EGraph()
    terms = {t: f"t{n}" for n, t in enumerate(dict.fromkeys(x for p in pairs for x in p))}
    lets = [f"(let {name} {text(t)})" for t, name in terms.items()]
    graph.run_program(*graph.parse_program(THEORY + "\n".join(lets)))
    left = list(pairs)
    for _ in range(rounds):
        graph.run_program(*graph.parse_program("(run 1)"))
        left = [p for p in left if not _equal(graph, terms[p[0]], terms[p[1]])]
        if not left:
            break
    return left


def _equal(graph: object, a: str, b: str) -> bool:
    try:
        graph.run_program(*graph.parse_program(f"(check (= {a} {b}))"))  # type: ignore[attr-defined]
    except bindings.EggSmolError:
        return False
    return True


@pytest.mark.parametrize("name", PROVED)
def test_egglog_proves_our_classes(name: str) -> None:
    pairs = [(a, b) for a, b in _values(CASES[name]) if a is not b and pure(a) and pure(b)]
    assert pairs or name == "sum_of_powers_masked"
    assert proves(pairs, 12) == []


def test_egglog_refuses_what_is_not_equal() -> None:
    """Eight times a value is not the value, and the sums of different powers differ."""
    invariant = CASES["sum_of_invariant"]
    assert proves([(invariant, invariant.args[0])], 4)
    assert proves([(CASES["sum_of_powers"], CASES["sum_of_powers_masked"])], 4)
