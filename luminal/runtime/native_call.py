"""LLVM text of one call: gather the arguments, decide serial or parallel, the Python entry point.

In: nothing. Out: text with the abbreviations that `native.runtime_text` writes out. `lm_entry` is
a METH_FASTCALL function whose self is the block's address as an int; its arguments are ints
(addresses) or objects with the buffer protocol; it returns the error word, -1 on a bad count.
"""

from __future__ import annotations

__all__ = ["CALL_TEXT", "ENTRY_TEXT"]

CALL_TEXT = """
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
  $record{%i}
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
  $record{%i}
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
"""

ENTRY_TEXT = """
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLong(i64)
declare i32 @PyObject_GetBuffer(ptr, ptr, i32)
declare void @PyBuffer_Release(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
define ptr @lm_entry(ptr %self, ptr %objects, i64 %count) nounwind {
entry:
  %view = alloca [16 x i64]
  %b = call ptr @PyLong_AsVoidPtr(ptr %self)
  $word{ptr,values} $word{i64,pointers} $word{ptr,int_type} $word{i64,gil_ns} $word{i64,error}
  %fits = icmp eq i64 %count, %pointers
  br i1 %fits, label %next, label %misfit
misfit:
  %bad = call ptr @PyLong_FromLong(i64 -1)
  ret ptr %bad
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
  br i1 %is_int, label %address, label %buffer
address:
  %pointer = call ptr @PyLong_AsVoidPtr(ptr %object)
  br label %store
buffer:
  %failed = call i32 @PyObject_GetBuffer(ptr %object, ptr %view, i32 0)
  %lost = icmp ne i32 %failed, 0
  br i1 %lost, label %raise, label %viewed
raise:
  ret ptr null
viewed:
  %data = load ptr, ptr %view
  call void @PyBuffer_Release(ptr %view)
  br label %store
store:
  %value = phi ptr [%pointer, %address], [%data, %viewed]
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
"""
