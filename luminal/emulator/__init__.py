"""The emulator: runs CUDA and MSL text on the CPU, for tests, and is stricter than hardware."""

from luminal.emulator.emulated import Counts, EmulatorError, counts

__all__ = ["Counts", "EmulatorError", "counts"]
