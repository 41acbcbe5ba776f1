"""The garbage collector rests during a conversion, and only then."""

import gc

import pytest

torch = pytest.importorskip("torch")

from luminal.frontend.torch import sizes, tracing  # noqa: E402
from luminal.frontend.torch.collector import resting, running  # noqa: E402


def test_rests_and_runs_again() -> None:
    assert gc.isenabled()
    with resting():
        assert not gc.isenabled()
        with running():
            assert gc.isenabled()
        assert not gc.isenabled()
        with resting():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collections_look_at_what_is_new() -> None:
    assert gc.get_freeze_count() == 0
    with resting():
        with running():
            assert gc.get_freeze_count() > 0
        assert gc.get_freeze_count() == 0
    gc.freeze()  # the program's own
    try:
        count = gc.get_freeze_count()
        with resting(), running():
            pass
        assert gc.get_freeze_count() >= count // 2
    finally:
        gc.unfreeze()


def test_what_was_off_stays_off() -> None:
    gc.disable()
    try:
        with resting(), running():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_on_again_after_an_error() -> None:
    with pytest.raises(ValueError), resting():
        raise ValueError
    assert gc.isenabled()


def test_during_a_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off while operators are traced, on while the graph is compiled and when all is done."""
    seen: dict[str, bool] = {}
    trace, generic = tracing.trace, sizes._generic

    def traced(*args: object) -> object:
        seen["compiling"] = gc.isenabled()
        return trace(*args)

    def converting() -> object:
        seen["converting"] = gc.isenabled()
        return generic()

    monkeypatch.setattr(tracing, "trace", traced)
    monkeypatch.setattr(sizes, "_generic", converting)
    monkeypatch.setenv("LUMINAL_CACHE", "off")
    torch._dynamo.reset()
    torch.compile(lambda x: x * 2 + 1, backend="luminal")(torch.ones(3))
    assert seen == {"converting": False, "compiling": True} and gc.isenabled()
