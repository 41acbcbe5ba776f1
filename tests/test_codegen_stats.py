"""The cost estimate orders schedules sensibly and counts registers."""

from dataclasses import replace

from luminal.codegen.stats import stats
from tests.codegen_case import TARGET, parse
from tests.test_codegen_lower_schedules import matmul


def measured(text: str):
    c, kernel, _ = matmul((96, 64, 64))
    return stats(c.lowered(replace(kernel, schedule=parse(text) if text else None)), TARGET)


def test_tiles_beat_scalar_loops_and_spills_cost():
    plain = measured("")
    tiled = measured("n:16 m:6 k:4 / k:1u m:1u n:8u n:1v")
    wide = measured("n:64 m:6 k:4 / k:1u m:1u n:8u n:1v")
    assert tiled.cycles < plain.cycles / 8
    assert tiled.cycles >= 96 * 64 * 64 / 16
    assert tiled.live <= TARGET.vector_registers < wide.live
    assert wide.cycles > tiled.cycles
    assert tiled.time_us > 0 and tiled.bytes > 0
