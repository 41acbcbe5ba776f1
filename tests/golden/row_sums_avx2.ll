target triple = "x86_64-unknown-linux-gnu"



define void @sums(ptr %.args, i64 %lo, i64 %hi, ptr %.scratch) #0 {
entry:
  %.w4 = getelementptr inbounds i64, ptr %.args, i64 4
  %m = load i64, ptr %.w4, align 8
  %.w3 = getelementptr inbounds i64, ptr %.args, i64 3
  %n = load i64, ptr %.w3, align 8
  %.w0 = getelementptr inbounds i64, ptr %.args, i64 0
  %.a0 = load ptr, ptr %.w0, align 8
  %.w1 = getelementptr inbounds i64, ptr %.args, i64 1
  %.a1 = load ptr, ptr %.w1, align 8
  br label %.L1
.L1:
  %r = phi i64 [%lo, %entry], [%.27, %.L20]
  %start = mul i64 %r, %m
  %.5 = icmp slt i64 0, %n
  br i1 %.5, label %.L3, label %.L4
.L3:
  %j = phi i64 [0, %.L1], [%.8, %.L3]
  %acc = phi <8 x float> [splat (float 0x0000000000000000), %.L1], [%more, %.L3]
  %part = mul i64 %j, 8
  %off = add i64 %start, %part
  %.6 = getelementptr inbounds float, ptr %.a0, i64 %off
  %.7 = load <8 x float>, ptr %.6, align 1
  %more = fadd <8 x float> %acc, %.7
  %.8 = add nuw nsw i64 %j, 1
  %.9 = icmp slt i64 %.8, %n
  br i1 %.9, label %.L3, label %.L4, !llvm.loop !2
.L4:
  %total = phi <8 x float> [splat (float 0x0000000000000000), %.L1], [%more, %.L3]
  %.10 = shufflevector <8 x float> %total, <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %.11 = shufflevector <8 x float> %total, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %.12 = fadd <4 x float> %.10, %.11
  %.13 = shufflevector <4 x float> %.12, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %.14 = shufflevector <4 x float> %.12, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %.15 = fadd <2 x float> %.13, %.14
  %.16 = extractelement <2 x float> %.15, i32 0
  %.17 = extractelement <2 x float> %.15, i32 1
  %.18 = fadd float %.16, %.17
  %whole = mul i64 %n, 8
  %.21 = icmp slt i64 %whole, %m
  br i1 %.21, label %.L19, label %.L20
.L19:
  %k = phi i64 [%whole, %.L4], [%.24, %.L19]
  %s = phi float [%.18, %.L4], [%s1, %.L19]
  %off2 = add i64 %start, %k
  %.22 = getelementptr inbounds float, ptr %.a0, i64 %off2
  %.23 = load float, ptr %.22, align 1
  %s1 = fadd float %s, %.23
  %.24 = add nuw nsw i64 %k, 1
  %.25 = icmp slt i64 %.24, %m
  br i1 %.25, label %.L19, label %.L20, !llvm.loop !3
.L20:
  %out = phi float [%.18, %.L4], [%s1, %.L19]
  %.26 = getelementptr inbounds float, ptr %.a1, i64 %r
  store float %out, ptr %.26, align 1
  %.27 = add nuw nsw i64 %r, 1
  %.28 = icmp slt i64 %.27, %hi
  br i1 %.28, label %.L1, label %.L2, !llvm.loop !4
.L2:
  ret void
}

define i64 @sums_grid(ptr %.args) #0 {
entry:
  %.w2 = getelementptr inbounds i64, ptr %.args, i64 2
  %rows = load i64, ptr %.w2, align 8
  %grid = add i64 %rows, 0
  ret i64 %grid
}

define i64 @sums_cost(ptr %.args) #0 {
entry:
  %.w2 = getelementptr inbounds i64, ptr %.args, i64 2
  %rows = load i64, ptr %.w2, align 8
  %.w4 = getelementptr inbounds i64, ptr %.args, i64 4
  %m = load i64, ptr %.w4, align 8
  %cost = mul i64 %rows, %m
  ret i64 %cost
}

attributes #0 = { nounwind "no-builtins" "target-cpu"="x86-64" "target-features"="+sse2,+ssse3,+sse4.1,+sse4.2,+avx,+avx2,+fma,+f16c" "prefer-vector-width"="256" }

!0 = !{!"llvm.loop.unroll.disable"}
!1 = !{i32 1}
!2 = distinct !{!2, !0}
!3 = distinct !{!3, !0}
!4 = distinct !{!4, !0}
