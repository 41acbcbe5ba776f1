; lm_missing: the first of `count` rows {i32, i32, i32, i32 mask} whose bits this processor lacks.
;; x86_64
define internal i32 @lm_look(i32 %leaf, i32 %sub, i32 %register) #0 {
  %control = icmp eq i32 %leaf, -1
  br i1 %control, label %saved, label %known
saved:
  %one = call { i32, i32, i32, i32 } asm sideeffect "cpuid", "={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"(i32 1, i32 0)
  %flags = extractvalue { i32, i32, i32, i32 } %one, 2
  %bit = and i32 %flags, 134217728
  %has = icmp ne i32 %bit, 0
  br i1 %has, label %ask, label %none
ask:
  %pair = call { i32, i32 } asm sideeffect "xgetbv", "={ax},={dx},{cx},~{dirflag},~{fpsr},~{flags}"(i32 0)
  %low = extractvalue { i32, i32 } %pair, 0
  ret i32 %low
known:
  %base = and i32 %leaf, -2147483648
  %top = call { i32, i32, i32, i32 } asm sideeffect "cpuid", "={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"(i32 %base, i32 0)
  %highest = extractvalue { i32, i32, i32, i32 } %top, 0
  %over = icmp ugt i32 %leaf, %highest
  br i1 %over, label %none, label %read
none:
  ret i32 0
read:
  %r = call { i32, i32, i32, i32 } asm sideeffect "cpuid", "={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"(i32 %leaf, i32 %sub)
  %a = extractvalue { i32, i32, i32, i32 } %r, 0
  %b = extractvalue { i32, i32, i32, i32 } %r, 1
  %c = extractvalue { i32, i32, i32, i32 } %r, 2
  %d = extractvalue { i32, i32, i32, i32 } %r, 3
  %is_b = icmp eq i32 %register, 1
  %is_c = icmp eq i32 %register, 2
  %is_d = icmp eq i32 %register, 3
  %v1 = select i1 %is_b, i32 %b, i32 %a
  %v2 = select i1 %is_c, i32 %c, i32 %v1
  %v3 = select i1 %is_d, i32 %d, i32 %v2
  ret i32 %v3
}
attributes #0 = { nounwind "target-cpu"="x86-64" "target-features"="+sse2" }
;; aarch64
declare i64 @getauxval(i64)
define internal i32 @lm_look(i32 %entry, i32 %sub, i32 %register) #0 {
  %wide = zext i32 %entry to i64
  %bits = call i64 @getauxval(i64 %wide)
  %low = trunc i64 %bits to i32
  ret i32 %low
}
attributes #0 = { nounwind }
;; both
define i32 @lm_missing(ptr %rows, i64 %count) #0 {
entry:
  br label %next
next:
  %i = phi i64 [0, %entry], [%i1, %look]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %look, label %fine
look:
  %row = getelementptr [4 x i32], ptr %rows, i64 %i
  %p1 = getelementptr i32, ptr %row, i64 1
  %p2 = getelementptr i32, ptr %row, i64 2
  %p3 = getelementptr i32, ptr %row, i64 3
  %leaf = load i32, ptr %row
  %sub = load i32, ptr %p1
  %register = load i32, ptr %p2
  %mask = load i32, ptr %p3
  %bits = call i32 @lm_look(i32 %leaf, i32 %sub, i32 %register) #0
  %set = and i32 %bits, %mask
  %good = icmp eq i32 %set, %mask
  %i1 = add i64 %i, 1
  br i1 %good, label %next, label %bad
bad:
  %number = trunc i64 %i to i32
  ret i32 %number
fine:
  ret i32 -1
}
