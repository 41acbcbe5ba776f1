"""The emulator: runs CUDA and MSL text on the CPU, for tests, and is stricter than hardware."""
