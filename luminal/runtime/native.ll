; The runtime's own native code: ticket pool, plan driver, entry points. Text that native.py completes:
;   $at{a,b}      addresses %p.a, %p.b of fields of the pool (native.POOL)
;   $word{t,a}    %b.a, the address of a word of the call block (native.CALL), and %a, its value
;   ;[x ... ;]    only if x is wanted
;
; The protocol: `ticket` = phase number << 32 | batches left. A batch is claimed by a
; compare-and-swap of the whole word, so a stale claim fails. Who finishes the last batch of a phase
; opens the next one. A thread may still be leaving a run when the next begins, so it only ever
; adds to the ticket. A late worker is never waited for; only the caller ever leaves lm_help.

; Kernel, its number of chunks, its cost, byte offset of its arguments.
%Launch = type { ptr, ptr, ptr, i64 }
declare i64 @llvm.smin.i64(i64, i64)

;[x86_64
declare void @llvm.x86.sse2.pause()
define internal void @lm_pause() nounwind {
  call void @llvm.x86.sse2.pause()
  ret void
}
@lm_futex = internal constant i64 202
;]

;[aarch64
declare void @llvm.aarch64.hint(i32)
define internal void @lm_pause() nounwind {
  call void @llvm.aarch64.hint(i32 1)
  ret void
}
@lm_futex = internal constant i64 98
;]

;[futex
declare i64 @syscall(i64, ...)
define internal void @lm_park(ptr %pool, i32 %phase, i32 %group) nounwind {
  %word = getelementptr i8, ptr %pool, i64 4
  %futex = load i64, ptr @lm_futex
  call i64 (i64, ...) @syscall(i64 %futex, ptr %word, i64 137, i32 %phase, ptr null, ptr null, i32 %group)
  ret void
}
define internal void @lm_wake(ptr %pool, i32 %count, i32 %groups) nounwind {
  %word = getelementptr i8, ptr %pool, i64 4
  %futex = load i64, ptr @lm_futex
  call i64 (i64, ...) @syscall(i64 %futex, ptr %word, i64 138, i32 %count, ptr null, ptr null, i32 %groups)
  ret void
}
;]

;[address
declare i32 @WaitOnAddress(ptr, ptr, i64, i32)
declare void @WakeByAddressAll(ptr)
define internal void @lm_park(ptr %pool, i32 %phase, i32 %group) nounwind {
  %word = getelementptr i8, ptr %pool, i64 4
  %seen = alloca i32
  store i32 %phase, ptr %seen
  call i32 @WaitOnAddress(ptr %word, ptr %seen, i64 4, i32 -1)
  ret void
}
define internal void @lm_wake(ptr %pool, i32 %count, i32 %groups) nounwind {
  %word = getelementptr i8, ptr %pool, i64 4
  call void @WakeByAddressAll(ptr %word)
  ret void
}
;]

;[condition
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
define internal void @lm_park(ptr %pool, i32 %phase, i32 %group) nounwind {
  %word = getelementptr i8, ptr %pool, i64 4
  $at{mutex,condition}
  call i32 @pthread_mutex_lock(ptr %p.mutex)
  %now = load atomic i32, ptr %word seq_cst, align 4
  %same = icmp eq i32 %now, %phase
  br i1 %same, label %wait, label %out
wait:
  call i32 @pthread_cond_wait(ptr %p.condition, ptr %p.mutex)
  br label %out
out:
  call i32 @pthread_mutex_unlock(ptr %p.mutex)
  ret void
}
define internal void @lm_wake(ptr %pool, i32 %count, i32 %groups) nounwind {
  $at{mutex,condition}
  call i32 @pthread_mutex_lock(ptr %p.mutex)
  call i32 @pthread_cond_broadcast(ptr %p.condition)
  call i32 @pthread_mutex_unlock(ptr %p.mutex)
  ret void
}
;]

; Open phase after phase: small ones are run here and now, a large one is published as tickets.
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
  %row = getelementptr %Launch, ptr %table, i64 %i
  %launch = load %Launch, ptr %row
  %fn = extractvalue %Launch %launch, 0
  %grid = extractvalue %Launch %launch, 1
  %cost = extractvalue %Launch %launch, 2
  %shift = extractvalue %Launch %launch, 3
  %a = getelementptr i8, ptr %args, i64 %shift
  %g = call i64 %grid(ptr %a)
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
  %bump = add i64 %n, 4294967296
  %bumped = atomicrmw add ptr %pool, i64 %bump seq_cst
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
  %close = add i64 0, 4294967296
  %closed = atomicrmw add ptr %pool, i64 %close seq_cst
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

; Claim and run batches; wait for more by a short spin, then parked.
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
  call void @lm_pause()
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
  call void @lm_pause()
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %count
  br i1 %more, label %loop, label %out
out:
  ret void
}

; One call: arguments into place, total cost, serial or parallel.
define internal void @lm_gather(ptr %b) nounwind {
entry:
  $word{ptr,args} $word{ptr,values} $word{ptr,index} $word{i64,index_count}
  %some = icmp sgt i64 %index_count, 0
  br i1 %some, label %loop, label %out
loop:
  %i = phi i64 [0, %entry], [%i1, %loop]
  %ip = getelementptr i64, ptr %index, i64 %i
  %from = load i64, ptr %ip
  %vp = getelementptr i64, ptr %values, i64 %from
  %v = load i64, ptr %vp
  %ap = getelementptr i64, ptr %args, i64 %i
  store i64 %v, ptr %ap
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %index_count
  br i1 %more, label %loop, label %out
out:
  ret void
}
define i64 @lm_cost(ptr %b) nounwind {
entry:
  $word{ptr,table} $word{i64,phases} $word{ptr,args}
  br label %next
next:
  %i = phi i64 [0, %entry], [%i1, %add], [%i1, %open]
  %sum = phi i64 [0, %entry], [%sum1, %add], [%sum, %open]
  %over = icmp uge i64 %i, %phases
  br i1 %over, label %out, label %open
open:
  %i1 = add i64 %i, 1
  %row = getelementptr %Launch, ptr %table, i64 %i
  %launch = load %Launch, ptr %row
  %grid = extractvalue %Launch %launch, 1
  %cost = extractvalue %Launch %launch, 2
  %shift = extractvalue %Launch %launch, 3
  %a = getelementptr i8, ptr %args, i64 %shift
  %g = call i64 %grid(ptr %a)
  %empty = icmp sle i64 %g, 0
  br i1 %empty, label %next, label %add
add:
  %c = call i64 %cost(ptr %a)
  %sum1 = add i64 %sum, %c
  br label %next
out:
  ret i64 %sum
}
define internal void @lm_serial(ptr %b) nounwind {
entry:
  $word{ptr,table} $word{i64,phases} $word{ptr,args} $word{ptr,scratch}
  br label %next
next:
  %i = phi i64 [0, %entry], [%i1, %run], [%i1, %open]
  %over = icmp uge i64 %i, %phases
  br i1 %over, label %out, label %open
open:
  %i1 = add i64 %i, 1
  %row = getelementptr %Launch, ptr %table, i64 %i
  %launch = load %Launch, ptr %row
  %fn = extractvalue %Launch %launch, 0
  %grid = extractvalue %Launch %launch, 1
  %shift = extractvalue %Launch %launch, 3
  %a = getelementptr i8, ptr %args, i64 %shift
  %g = call i64 %grid(ptr %a)
  %empty = icmp sle i64 %g, 0
  br i1 %empty, label %next, label %run
run:
  call void %fn(ptr %a, i64 0, i64 %g, ptr %scratch)
  br label %next
out:
  ret void
}
define internal void @lm_run(ptr %b, i64 %total) nounwind {
entry:
  $word{ptr,pool} $word{ptr,table} $word{i64,phases} $word{ptr,args} $word{ptr,scratch}
  $word{i64,stride}
  %none = icmp eq ptr %pool, null
  br i1 %none, label %serial, label %large
large:
  $at{busy,serial_ns,table,phase,phases,args,scratch,stride,finished}
  %limit = load i64, ptr %p.serial_ns
  %small = icmp slt i64 %total, %limit
  br i1 %small, label %serial, label %take
take:
  %swap = cmpxchg ptr %p.busy, i32 0, i32 1 acquire monotonic
  %mine = extractvalue {i32, i1} %swap, 1
  br i1 %mine, label %parallel, label %serial
parallel:
  store ptr %table, ptr %p.table
  store i64 0, ptr %p.phase
  store i64 %phases, ptr %p.phases
  store ptr %args, ptr %p.args
  store ptr %scratch, ptr %p.scratch
  store i64 %stride, ptr %p.stride
  store atomic i32 0, ptr %p.finished release, align 4
  call void @lm_advance(ptr %pool, i64 0)
  call void @lm_help(ptr %pool, i64 0)
  store atomic i32 0, ptr %p.busy release, align 4
  ret void
serial:
  call void @lm_serial(ptr %b)
  ret void
}
define i32 @lm_call(ptr %b) nounwind {
  $word{ptr,error}
  store i32 0, ptr %b.error
  call void @lm_gather(ptr %b)
  %total = call i64 @lm_cost(ptr %b)
  call void @lm_run(ptr %b, i64 %total)
  %code = load i32, ptr %b.error
  ret i32 %code
}

; METH_FASTCALL function whose self is the block's address as an int; arguments are ints
; (addresses) or NumPy arrays. Returns the error word, -1 on a bad count, -2 on an argument that is
; neither, or not C-contiguous.
;[python
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
define ptr @lm_entry(ptr %self, ptr %objects, i64 %count) nounwind {
entry:
  %b = call ptr @PyLong_AsVoidPtr(ptr %self)
  $word{ptr,values} $word{i64,pointers} $word{ptr,int_type} $word{ptr,array_type} $word{i64,gil_ns}
  $word{i64,error}
  %fits = icmp eq i64 %count, %pointers
  br i1 %fits, label %next, label %reject
next:
  %i = phi i64 [0, %entry], [%i1, %store]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %take, label %run
take:
  %i1 = add i64 %i, 1
  %op = getelementptr ptr, ptr %objects, i64 %i
  %object = load ptr, ptr %op
  %tp = getelementptr i8, ptr %object, i64 8
  %type = load ptr, ptr %tp
  %is_int = icmp eq ptr %type, %int_type
  br i1 %is_int, label %address, label %other
address:
  %pointer = call ptr @PyLong_AsVoidPtr(ptr %object)
  br label %store
other:
  %is_array = icmp eq ptr %type, %array_type
  br i1 %is_array, label %array, label %reject
array:
  %dp = getelementptr i8, ptr %object, i64 16
  %data = load ptr, ptr %dp
  %fp = getelementptr i8, ptr %object, i64 64
  %flags = load i32, ptr %fp
  %c_contiguous = trunc i32 %flags to i1
  br i1 %c_contiguous, label %store, label %reject
reject:
  %why = phi i64 [-1, %entry], [-2, %other], [-2, %array]
  %bad = call ptr @PyLong_FromLong(i64 %why)
  ret ptr %bad
store:
  %value = phi ptr [%pointer, %address], [%data, %array]
  %vp = getelementptr ptr, ptr %values, i64 %i
  store ptr %value, ptr %vp
  br label %next
run:
  store i32 0, ptr %b.error
  call void @lm_gather(ptr %b)
  %total = call i64 @lm_cost(ptr %b)
  %long = icmp sge i64 %total, %gil_ns
  br i1 %long, label %release, label %keep
release:
  %state = call ptr @PyEval_SaveThread()
  call void @lm_run(ptr %b, i64 %total)
  call void @PyEval_RestoreThread(ptr %state)
  br label %out
keep:
  call void @lm_run(ptr %b, i64 %total)
  br label %out
out:
  %code = load i32, ptr %b.error
  %long_code = sext i32 %code to i64
  %result = call ptr @PyLong_FromLong(i64 %long_code)
  ret ptr %result
}
;]
