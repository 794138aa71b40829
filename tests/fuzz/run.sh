#!/bin/sh
# Fuzzes the GGUF reader under ASan and UBSan:  tests/fuzz/run.sh [SECONDS]
#
# Needs clang with libFuzzer:  apt-get install -y --no-install-recommends clang-14 libclang-rt-14-dev
# Another compiler: CXX=clang++ tests/fuzz/run.sh 60. Build, corpus and findings are in build/fuzz;
# the corpus grows from run to run. The exit status is not 0 if anything was found.
set -eu
seconds=${1:-60}
root=$(cd "$(dirname "$0")/../.." && pwd)
cxx=${CXX:-clang++-14}
python=${PYTHON:-$root/.venv/bin/python}
out=$root/build/fuzz

command -v "$cxx" >/dev/null || {
  echo "run.sh: no $cxx; apt-get install -y --no-install-recommends clang-14 libclang-rt-14-dev" >&2
  exit 2
}
mkdir -p "$out/objects" "$out/corpus" "$out/findings"

cd "$root/native"
# Two compilers at a time: one per core of the reference machine.
printf '%s\n' fuzz/gguf_fuzz.cc fuzz/touch_model.cc gguf/*.cc |
  xargs -P 2 -I{} sh -c '
    object=$2/objects/$(basename "$1" .cc).o
    newest=$(find base gguf fuzz -newer "$object" 2>/dev/null | head -n 1)
    [ -f "$object" ] && [ -z "$newest" ] && exit 0
    exec "$3" -std=c++20 -O1 -g -Wall -Wextra -Werror -I. \
      -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all \
      -c "$1" -o "$object"' sh {} "$out" "$cxx"
"$cxx" -fsanitize=fuzzer,address,undefined "$out"/objects/*.o -o "$out/gguf_fuzz"

cd "$root"
PYTHONPATH=$root/src${PYTHONPATH:+:$PYTHONPATH} "$python" -m tests.fuzz.make_corpus "$out/seeds"
# A whole model's header is about 5 KB. The limits make slowness and memory jumps findings too: an
# input of 16 KiB has no reason to take a second, nor an allocation of 16 MB.
exec "$out/gguf_fuzz" "$out/corpus" "$out/seeds" -max_total_time="$seconds" -max_len=16384 \
  -timeout=1 -malloc_limit_mb=16 -rss_limit_mb=1024 -use_value_profile=1 \
  -dict="$root/tests/fuzz/gguf.dict" -artifact_prefix="$out/findings/" \
  -print_final_stats=1 -verbosity=0
