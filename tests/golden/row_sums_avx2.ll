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
  %r = phi i64 [%lo, %entry], [%.31, %.L23]
  %start = mul i64 %r, %m
  %runs_j = icmp slt i64 0, %n
  br i1 %runs_j, label %.L3, label %.L4
.L3:
  br label %.L6
.L6:
  %j = phi i64 [0, %.L3], [%.10, %.L6]
  %acc = phi <8 x float> [splat (float 0x0000000000000000), %.L3], [%more, %.L6]
  %part = mul i64 %j, 8
  %off = add i64 %start, %part
  %.8 = getelementptr inbounds float, ptr %.a0, i64 %off
  %.9 = load <8 x float>, ptr %.8, align 1
  %more = fadd <8 x float> %acc, %.9
  %.10 = add nuw nsw i64 %j, 1
  %.11 = icmp slt i64 %.10, %n
  br i1 %.11, label %.L6, label %.L7, !llvm.loop !2
.L7:
  %total_j = phi <8 x float> [%more, %.L6]
  br label %.L5
.L4:
  br label %.L5
.L5:
  %total = phi <8 x float> [%total_j, %.L7], [splat (float 0x0000000000000000), %.L4]
  %.12 = shufflevector <8 x float> %total, <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %.13 = shufflevector <8 x float> %total, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %.14 = fadd <4 x float> %.12, %.13
  %.15 = shufflevector <4 x float> %.14, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %.16 = shufflevector <4 x float> %.14, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %.17 = fadd <2 x float> %.15, %.16
  %.18 = extractelement <2 x float> %.17, i32 0
  %.19 = extractelement <2 x float> %.17, i32 1
  %.20 = fadd float %.18, %.19
  %whole = mul i64 %n, 8
  %runs_k = icmp slt i64 %whole, %m
  br i1 %runs_k, label %.L21, label %.L22
.L21:
  br label %.L24
.L24:
  %k = phi i64 [%whole, %.L21], [%.28, %.L24]
  %s = phi float [%.20, %.L21], [%s1, %.L24]
  %off2 = add i64 %start, %k
  %.26 = getelementptr inbounds float, ptr %.a0, i64 %off2
  %.27 = load float, ptr %.26, align 1
  %s1 = fadd float %s, %.27
  %.28 = add nuw nsw i64 %k, 1
  %.29 = icmp slt i64 %.28, %m
  br i1 %.29, label %.L24, label %.L25, !llvm.loop !3
.L25:
  %out_k = phi float [%s1, %.L24]
  br label %.L23
.L22:
  br label %.L23
.L23:
  %out = phi float [%out_k, %.L25], [%.20, %.L22]
  %.30 = getelementptr inbounds float, ptr %.a1, i64 %r
  store float %out, ptr %.30, align 1
  %.31 = add nuw nsw i64 %r, 1
  %.32 = icmp slt i64 %.31, %hi
  br i1 %.32, label %.L1, label %.L2, !llvm.loop !4
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
