"""LLVM text of the runtime's own native code: ticket pool, plan driver, Python entry points.

In: the platform's way to pause and to park a thread. Out: LLVM text with the functions `lm_*`,
the layout constants of the two structures they share with Python (CALL, POOL). The protocol:
`ticket` = phase number << 32 | batches left. A batch is claimed by a compare-and-swap of the
whole word, so a stale claim fails; who finishes a phase's last batch opens the next phase. A
thread may still be leaving the last run when the next begins, so it only ever adds to the ticket.
"""

from __future__ import annotations

from luminal.runtime.native_call import CALL_TEXT, ENTRY_TEXT

__all__ = ["CALL", "POOL", "POOL_BYTES", "runtime_text"]

# Word (i64) indices in the block of one call.
CALL = {name: i for i, name in enumerate((
    "pool", "table", "phases", "args", "scratch", "stride", "values", "index", "index_count",
    "pointers", "error", "int_type", "gil_ns",
))}  # fmt: skip

# Byte offsets in a pool; groups that different threads write lie in different cache lines.
POOL = {
    "ticket": 0, "pending": 64, "sleepers": 128, "finished": 132, "busy": 136,
    "table": 192, "phase": 200, "phases": 208, "args": 216, "scratch": 224, "stride": 232,
    "kernel": 256, "kernel_args": 264, "grid": 272, "batch": 280, "batches": 288,
    "threads": 320, "spins": 328, "batch_ns": 336, "wake_ns": 344, "serial_ns": 352,
    "mutex": 384, "condition": 512,
}  # fmt: skip
POOL_BYTES = 640

_PARK_FUTEX = """
declare i64 @syscall(i64, ...)
define internal void @lm_park(ptr %pool, i32 %phase, i32 %group) nounwind {
  %word = getelementptr i8, ptr %pool, i64 4
  call i64 (i64, ...) @syscall(i64 $futex, ptr %word, i64 137, i32 %phase, ptr null, ptr null, i32 %group)
  ret void
}
define internal void @lm_wake(ptr %pool, i32 %count, i32 %groups) nounwind {
  %word = getelementptr i8, ptr %pool, i64 4
  call i64 (i64, ...) @syscall(i64 $futex, ptr %word, i64 138, i32 %count, ptr null, ptr null, i32 %groups)
  ret void
}
"""  # noqa: E501

_PARK_CONDITION = """
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
define internal void @lm_park(ptr %pool, i32 %phase, i32 %group) nounwind {
  %word = getelementptr i8, ptr %pool, i64 4
  %mutex = getelementptr i8, ptr %pool, i64 @mutex@
  %condition = getelementptr i8, ptr %pool, i64 @condition@
  call i32 @pthread_mutex_lock(ptr %mutex)
  %now = load atomic i32, ptr %word seq_cst, align 4
  %same = icmp eq i32 %now, %phase
  br i1 %same, label %wait, label %out
wait:
  call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %out
out:
  call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}
define internal void @lm_wake(ptr %pool, i32 %count, i32 %groups) nounwind {
  %mutex = getelementptr i8, ptr %pool, i64 @mutex@
  %condition = getelementptr i8, ptr %pool, i64 @condition@
  call i32 @pthread_mutex_lock(ptr %mutex)
  call i32 @pthread_cond_broadcast(ptr %condition)
  call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}
"""

# Open phase after phase: small ones are run here and now, a large one is published as tickets.
_ADVANCE = """
define internal void @lm_advance(ptr %pool, i64 %tid) nounwind {
entry:
  $at{table,phase,phases,args,scratch,stride,threads,batch_ns,wake_ns,sleepers,finished,pending}
  $at{kernel,kernel_args,grid,batch,batches}
  %table = load ptr, ptr %p.table
  %phases = load i64, ptr %p.phases
  %args = load ptr, ptr %p.args
  %base = load ptr, ptr %p.scratch
  %stride = load i64, ptr %p.stride
  %offset = mul i64 %tid, %stride
  %scratch = getelementptr i8, ptr %base, i64 %offset
  %threads = load i64, ptr %p.threads
  %batch_ns = load i64, ptr %p.batch_ns
  %wake_ns = load i64, ptr %p.wake_ns
  br label %next
next:
  %i = load i64, ptr %p.phase
  %over = icmp uge i64 %i, %phases
  br i1 %over, label %end, label %open
open:
  %i1 = add i64 %i, 1
  store i64 %i1, ptr %p.phase
  $record{%i}
  %empty = icmp sle i64 %g, 0
  br i1 %empty, label %next, label %sized
sized:
  %c = call i64 %cost(ptr %a)
  %by_cost = sdiv i64 %c, %batch_ns
  %by_threads = mul i64 %threads, 8
  %n1 = call i64 @llvm.smin.i64(i64 %by_cost, i64 %by_threads)
  %n2 = call i64 @llvm.smin.i64(i64 %n1, i64 %g)
  %single = icmp sle i64 %n2, 1
  br i1 %single, label %alone, label %publish
alone:
  call void %fn(ptr %a, i64 0, i64 %g, ptr %scratch)
  br label %next
publish:
  %g1 = add i64 %g, -1
  %g2 = add i64 %g1, %n2
  %size = udiv i64 %g2, %n2
  %g3 = add i64 %g1, %size
  %n = udiv i64 %g3, %size
  store ptr %fn, ptr %p.kernel
  store ptr %a, ptr %p.kernel_args
  store i64 %g, ptr %p.grid
  store i64 %size, ptr %p.batch
  store i64 %n, ptr %p.batches
  store atomic i64 %n, ptr %p.pending monotonic, align 8
  $bump{%n}
  %costly = icmp sge i64 %c, %wake_ns
  %asleep = load atomic i32, ptr %p.sleepers seq_cst, align 4
  %any = icmp ne i32 %asleep, 0
  %call = and i1 %costly, %any
  br i1 %call, label %wake, label %out
wake:
  %m = add i64 %n, -1
  %count = trunc i64 %m to i32
  call void @lm_wake(ptr %pool, i32 %count, i32 3)
  br label %out
end:
  store atomic i32 1, ptr %p.finished release, align 4
  $bump{0}
  %asleep2 = load atomic i32, ptr %p.sleepers seq_cst, align 4
  %any2 = icmp ne i32 %asleep2, 0
  %other = icmp ne i64 %tid, 0
  %call2 = and i1 %any2, %other
  br i1 %call2, label %wake_caller, label %out
wake_caller:
  call void @lm_wake(ptr %pool, i32 1, i32 1)
  br label %out
out:
  ret void
}
"""

# Claim and run batches; wait for more by a short spin, then parked. Only the caller ever returns.
_HELP = """
define void @lm_help(ptr %pool, i64 %tid) nounwind {
entry:
  $at{ticket,spins,sleepers,finished,pending,kernel,kernel_args,grid,batch,batches,scratch,stride}
  %caller = icmp eq i64 %tid, 0
  %group = select i1 %caller, i32 1, i32 2
  %spins = load i64, ptr %p.spins
  br label %scan
scan:
  %n = phi i64 [0, %entry], [%n, %claim], [0, %chunk], [0, %last], [%n1, %spin], [0, %sleep]
  %w = load atomic i64, ptr %p.ticket seq_cst, align 8
  %left = and i64 %w, 4294967295
  %some = icmp ne i64 %left, 0
  br i1 %some, label %claim, label %idle
claim:
  %w1 = add i64 %w, -1
  %swap = cmpxchg ptr %p.ticket, i64 %w, i64 %w1 acq_rel monotonic
  %ok = extractvalue {i64, i1} %swap, 1
  br i1 %ok, label %chunk, label %scan
chunk:
  %fn = load ptr, ptr %p.kernel
  %a = load ptr, ptr %p.kernel_args
  %g = load i64, ptr %p.grid
  %size = load i64, ptr %p.batch
  %all = load i64, ptr %p.batches
  %base = load ptr, ptr %p.scratch
  %stride = load i64, ptr %p.stride
  %offset = mul i64 %tid, %stride
  %scratch = getelementptr i8, ptr %base, i64 %offset
  %nth = sub i64 %all, %left
  %lo = mul i64 %nth, %size
  %top = add i64 %lo, %size
  %hi = call i64 @llvm.smin.i64(i64 %top, i64 %g)
  call void %fn(ptr %a, i64 %lo, i64 %hi, ptr %scratch)
  %before = atomicrmw sub ptr %p.pending, i64 1 acq_rel
  %was_last = icmp eq i64 %before, 1
  br i1 %was_last, label %last, label %scan
last:
  call void @lm_advance(ptr %pool, i64 %tid)
  br label %scan
idle:
  %f = load atomic i32, ptr %p.finished acquire, align 4
  %done = icmp ne i32 %f, 0
  %leave = and i1 %done, %caller
  br i1 %leave, label %out, label %stay
stay:
  %n1 = add i64 %n, 1
  %again = icmp slt i64 %n, %spins
  br i1 %again, label %spin, label %sleep
spin:
  $pause
  br label %scan
sleep:
  %up = atomicrmw add ptr %p.sleepers, i32 1 seq_cst
  %high = lshr i64 %w, 32
  %phase = trunc i64 %high to i32
  call void @lm_park(ptr %pool, i32 %phase, i32 %group)
  %down = atomicrmw sub ptr %p.sleepers, i32 1 seq_cst
  br label %scan
out:
  ret void
}
define void @lm_spin(i64 %count) nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
  $pause
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %count
  br i1 %more, label %loop, label %out
out:
  ret void
}
"""

_RECORD = """%r = getelementptr i8, ptr %table, i64 %row
  %fn = load ptr, ptr %r
  %r1 = getelementptr i8, ptr %r, i64 8
  %grid = load ptr, ptr %r1
  %r2 = getelementptr i8, ptr %r, i64 16
  %cost = load ptr, ptr %r2
  %r3 = getelementptr i8, ptr %r, i64 24
  %shift = load i64, ptr %r3
  %a = getelementptr i8, ptr %args, i64 %shift
  %g = call i64 %grid(ptr %a)"""


def _expand(line: str) -> str:
    """One line with its $-abbreviations written out as LLVM text."""
    head, _, rest = line.strip().partition("{")
    if head == "$at":
        names = rest.rstrip("}").split(",")
        return "\n".join(
            f"  %p.{name} = getelementptr i8, ptr %pool, i64 {POOL[name]}" for name in names
        )
    if head == "$word":
        out = []
        for piece in line.strip().split("$word{")[1:]:
            kind, name = piece.strip().rstrip("}").split(",")
            out.append(f"  %b.{name} = getelementptr i64, ptr %b, i64 {CALL[name]}")
            out.append(f"  %{name} = load {kind}, ptr %b.{name}")
        return "\n".join(out)
    if head == "$record":
        return f"  %row = mul i64 {rest.rstrip('}')}, 32\n  {_RECORD}"
    if head == "$bump":
        return f"""  %word.{rest[0] == "0"} = add i64 {rest.rstrip("}")}, 4294967296
  %old.{rest[0] == "0"} = atomicrmw add ptr %pool, i64 %word.{rest[0] == "0"} seq_cst"""
    return line


def runtime_text(triple: str, python: bool = True, park: str = "") -> str:
    """LLVM text of the runtime for `triple`.

    `python` adds the CPython entry point; `park` is "futex" or "condition", by default the one
    that the system has.
    """
    x86 = triple.startswith("x86_64")
    park = park or ("futex" if "linux" in triple else "condition")
    parts = [_PARK_FUTEX if park == "futex" else _PARK_CONDITION, _ADVANCE, _HELP, CALL_TEXT]
    parts += [ENTRY_TEXT] if python else []
    text = "\n".join(_expand(line) for line in "".join(parts).splitlines())
    pause = f"call void @llvm.{'x86.sse2.pause()' if x86 else 'aarch64.hint(i32 1)'}"
    text = text.replace("$pause", pause).replace("$futex", "202" if x86 else "98")
    for name in ("mutex", "condition"):
        text = text.replace(f"@{name}@", str(POOL[name]))
    declared = "x86.sse2.pause()" if x86 else "aarch64.hint(i32)"
    head = f"declare void @llvm.{declared}\ndeclare i64 @llvm.smin.i64(i64, i64)\n"
    return head + text
