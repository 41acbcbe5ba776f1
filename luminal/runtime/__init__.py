"""Runtime: devices, machine code in memory, threads, arenas and the executor of a Program."""
