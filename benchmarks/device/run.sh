#!/usr/bin/env bash
# Checks and times luminal on an NVIDIA GPU, in at most eight minutes, with no network.
# Needs a Python with PyTorch (CUDA), llvmlite and cuda-bindings; luminal is taken from this tree.
#   benchmarks/device/run.sh          results in $OUT, or build/device: table.md, rows.jsonl
#   benchmarks/device/run.sh --dry    every part at toy size on the CPU, to test the script itself
set -u
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
out=${OUT:-build/device}
if [ "${1:-}" != --dry ]; then
  if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ] && ! command -v nvidia-smi >/dev/null; then
    echo "no NVIDIA GPU here: nothing was run"
    exit 0
  fi
  if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "PyTorch finds no CUDA GPU: nothing was run"
    exit 0
  fi
  "$python" -c 'import llvmlite, numpy, cuda.bindings.driver, cuda.bindings.nvrtc' || exit 1
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
fi
mkdir -p "$out"
export PYTHONPATH="$PWD:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export LUMINAL_CACHE="$(mktemp -d)" LUMINAL_SEARCH=off LUMINAL_PROGRESS=off
trap 'rm -rf "$LUMINAL_CACHE"' EXIT
"$python" benchmarks/device/device.py --out "$out" "$@"
