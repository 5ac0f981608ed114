#!/usr/bin/env bash
# What a CUDA GPU makes of layl, in under eight minutes: an epoch of the sample in bf16 and fp32, resume equality in
# deterministic mode, and the model FLOP utilisation of preset 16m. Without a GPU it says so and ends 0.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
[ -x .venv/bin/python ] && [ -z "${PYTHON:-}" ] && python=.venv/bin/python
export DO_NOT_TRACK=1 PYTHONUNBUFFERED=1 CUBLAS_WORKSPACE_CONFIG=:4096:8
PYTHONPATH=. exec timeout 470 "$python" -m benchmarks.gpu "$@"
