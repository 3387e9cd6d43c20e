#!/usr/bin/env bash
# What only a GPU can prove:  benchmarks/gpu.sh [FOLDER [PART…]]
#
# The parts, each with a limit of its own: three minutes, or ten for those that need several GPUs; one that fails does not keep the others from
# running.  Without PART they run one after the other, which takes at most the sum of the limits; where a machine is lent
# for a shorter time, call them one by one, into the same FOLDER:  benchmarks/gpu.sh results order tests
#
#   environment  60 s   which GPUs were found, and what is missing
#   order       100 s   the order of work on streams, by torch's sanitizer
#   tests       170 s   the kernels' tests on the GPU
#   kernels     110 s   the kernels beside the chip's limits
#   timeline     90 s   steps of HPL and HPL-MxP as torch's profiler sees them, beside the modelled ones
#   hpl-mxp      70 s   hpl 60 s   hpg-mxp 120 s   hpcg 70 s   norms 45 s   scan 30 s   solve 45 s
#                       the benchmarks, each with its limit measured in the same process
#   multi-order  multi-messages  multi-hpl  multi-halo  multi-norms   590 s each
#                       with more than one GPU: benchmarks/multi_gpu.py, which compares with expected values
#
# JSON and logs go into FOLDER (default gpu-results); nothing need be installed but the dependencies.
#   PYTHON   the interpreter (default python3)
#   MACHINE  the file of the modelled machine (default tests/queues/h200.toml)
set -uo pipefail
every="environment order tests kernels timeline hpl-mxp hpl hpg-mxp hpcg norms scan solve"
several="multi-order multi-messages multi-hpl multi-halo multi-norms"
every+=" $several"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
    exit 0
fi
parts=${*:2}
for part in ${parts:=$every}; do
    [[ " $every " == *" $part "* ]] || { echo "no part is called $part; type some of: $every" >&2; exit 2; }
done
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
out=$(mkdir -p "${1:-gpu-results}" && cd "${1:-gpu-results}" && pwd)
python=${PYTHON:-python3}
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 NO_COLOR=1 TRITON_INTERPRET=0
export MXPEAK_CACHE_DIR="${MXPEAK_CACHE_DIR:-$(mktemp -d)}"
begin=$SECONDS failed=()

# part NAME SECONDS COMMAND...: run it within its time, if it is wanted; its output goes to a log, the end of it here too
part() {
    local name=$1 limit=$2 start=$SECONDS status=0
    shift 2
    [[ " $parts " == *" $name "* ]] || return 0
    timeout --signal=INT --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1 </dev/null || status=$?
    printf '== %s: status %s, %s s\n' "$name" "$status" $((SECONDS - start))
    tail -n 40 "$out/$name.log"
    ((status == 0)) || failed+=("$name")
}

run() { "$python" -m mxpeak run "$1" --device cuda --progress never --out "$out/$1-files" --json "$out/$1.json" "${@:2}"; }
export -f run
export out python

# small BENCHMARK SETTINGS...: a run that torch's sanitizer of streams looks at; it ends at what no event orders
small() { TORCH_CUDA_SANITIZER=1 "$python" -m mxpeak run "$1" --device cuda --progress never "${@:2}"; }
export -f small

part environment 60 "$python" -m mxpeak doctor
# It knows torch's own operations, not Triton's kernels.
part order 100 bash -c 'small hpl -N 4096 --nb 256 && small hpl-mxp -N 4096 --nb 512 &&
    small hpg-mxp --mode explore --nx 16 --ny 16 --nz 16 --quick --rt 0.01 --iterations 30'
# Most of their time is Triton's, compiling: on all cores, where pytest-xdist is there to share it out.  A warning does
# not hide the result behind it.
workers=()
"$python" -c 'import xdist' 2>/dev/null && workers=(-n "$(nproc)" --dist worksteal)
part tests 170 env TEST_DEVICE=cuda OMP_NUM_THREADS=1 "$python" -m pytest -q -W default --tb=short --durations=10 \
    -o addopts="--strict-markers" -p no:cacheprovider -p no:benchmark "${workers[@]}" \
    -k "torch or gpu" tests/contract tests/solvers/test_torch_lu.py tests/library/test_dense_hard_matrices.py tests/gpu
part kernels 110 "$python" benchmarks/gpu.py --out "$out/kernels.json"
part timeline 90 "$python" benchmarks/gpu_timeline.py "$out" --machine "${MACHINE:-tests/queues/h200.toml}"
part hpl-mxp 70 bash -c 'run hpl-mxp --precision fp16'
part hpl 60 bash -c 'run hpl --nb 1024'
part hpg-mxp 120 bash -c 'run hpg-mxp --mode explore --rt 5'
part hpcg 70 bash -c 'run hpcg --rt 5'
part norms 45 bash -c 'run norms -N 40000 --dtype float32,float64'
part scan 30 "$python" -m mxpeak scan --device cuda --progress never --json "$out/scan.json"
part solve 45 "$python" benchmarks/gpu.py --sections solve --out "$out/solve.json"

# nvidia-smi counts NVIDIA's GPUs, torch also AMD's.
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
((gpus > 0)) || gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())' 2>/dev/null || echo 0)
for proof in $several; do
    if ((gpus > 1)); then
        part "$proof" 590 "$python" benchmarks/multi_gpu.py "${proof#multi-}" --gpus "$gpus" --out "$out/$proof.json"
    elif [[ " $parts " == *" $proof "* ]]; then
        echo "== $proof: not run; it needs at least 2 GPUs, but $gpus found"
        [[ $parts == "$every" ]] || failed+=("$proof")
    fi
done

printf '\n%s s; failed: %s\n' $((SECONDS - begin)) "${failed[*]:-none}"
((${#failed[@]} == 0))
