#!/usr/bin/env bash
# tests/tidy passes a clean tree and finds every kind of violation, each planted alone.
set -euo pipefail

tidy=$(cd "$(dirname "$0")/../.." && pwd)/tidy
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

clean_tree() {
  rm -rf "$work/tree"
  mkdir -p "$work/tree"/runtime/{base,comm,plan,exec,data} "$work/tree"/{models/graph,kernels,launcher,tests}
  cd "$work/tree"
  printf '// Sizes.\n#pragma once\n\n// The sum.\nint fsdp_size_add(int a, int b);\n' >runtime/base/size.h
  echo '#include "runtime/base/size.h"' >runtime/base/size.c
  printf '// Graphs.\n#pragma once\n\n#include "runtime/base/size.h"\n' >models/graph/graph.h
  printf '// Models.\n#pragma once\n\n#include "models/graph/graph.h"\n' >models/model.h
  printf '// Plans.\n#pragma once\n\n#include "models/model.h"\n' >runtime/plan/plan.h
  echo '#include "runtime/plan/plan.h"' >runtime/exec/run.c
  printf '// Comm.\n#include "runtime/base/size.h"\n\nint x(void) { return MPI_Init(0, 0); }\n' \
    >runtime/comm/comm_mpi.c
}

# expect WHAT: tidy must fail and say WHAT.
expect() {
  local output
  if output=$(python3 "$tidy" "$work/tree"); then
    echo "not found: $1"
    failed=1
  elif ! grep -qF -- "$1" <<<"$output"; then
    printf 'expected "%s", but it said:\n%s\n' "$1" "$output"
    failed=1
  fi
}

many() { for ((i = 0; i < $2; i++)); do printf '%s\n' "$1"; done; }

clean_tree
if ! python3 "$tidy" "$work/tree" >"$work/output"; then
  cat "$work/output"
  echo "a clean tree does not pass"
  exit 1
fi

clean_tree && many 'extern int x;' 601 >models/long.c && expect "models/long.c:1: 601 lines"
clean_tree && { echo 'static int f(void) {' && many '  g();' 69 && echo '}'; } >models/f.c
expect "models/f.c:1: a function of 71 lines"
clean_tree && { echo 'static int f(void)' && echo '{' && many '  g("}");' 68 && echo '}'; } >models/f.c
expect "a function of 71 lines"
clean_tree && { echo 'def f():' && many '    g()' 70; } >tests/f.py
expect "tests/f.py:1: a function of 71 lines"
clean_tree && printf '// %0108d\n' 0 >models/wide.c && expect "models/wide.c:1: 111 columns"

clean_tree && echo '#include "runtime/plan/plan.h"' >models/up.c && expect "models/ may not use runtime/plan/"
clean_tree && echo '#include "models/graph/graph.h"' >runtime/base/up.c
expect "runtime/base/ may not use models/"
clean_tree && echo '#include "models/graph/graph.h"' >kernels/up.c && expect "kernels/ may not use models/"
clean_tree && echo '// IO.' >runtime/data/file.h && echo '#include "runtime/data/file.h"' >runtime/exec/up.c
expect "runtime/exec/ may not use runtime/data/"
clean_tree && echo '#include "runtime/data/file.h"' >runtime/plan/up.c && echo '// IO.' >runtime/data/file.h
expect "runtime/plan/ may not use runtime/data/"
for pair in device:comm comm:device device:kernels comm:kernels comm:plan device:plan plan:exec; do
  from=${pair%:*} to=${pair#*:}
  [ "$to" = kernels ] || to=runtime/$to
  clean_tree && mkdir -p "runtime/$from" "$to" && echo '// A.' >"$to/a.h"
  echo "#include \"$to/a.h\"" >"runtime/$from/up.c"
  expect "runtime/$from/ may not use $to/"
done
clean_tree && echo '#include "graph.h"' >models/relative.c && expect '"graph.h" is no path from the root'

clean_tree
printf '// A.\n#pragma once\n\n#include "models/b.h"\n' >models/a.h
printf '// B.\n#pragma once\n' >models/b.h && echo '#include "models/a.h"' >models/b.c
expect "models/b.c:1: a circle: models/a -> models/b -> models/a"
clean_tree && echo 'import b' >tests/a.py && echo 'import c' >tests/b.py && echo 'import a' >tests/c.py
expect "tests/c.py:1: a circle: tests/a.py -> tests/b.py -> tests/c.py -> tests/a.py"
# Files that call each other through a header of all: two, and three.
call() { printf '#include "models/all.h"\n\nint %s(int x) { return %s(x); }\n' "$1" "$2"; }
clean_tree
printf '// A.\n#pragma once\n\n// All.\nint a1(int x);\nint b1(int x);\nint c1(int x);\n' >models/all.h
call a1 b1 >models/a.c && call b1 a1 >models/b.c
expect "models/b.c:3: a circle of calls: models/a.c -> models/b.c -> models/a.c"
call b1 c1 >models/b.c && call c1 a1 >models/c.c
expect "a circle of calls: models/a.c -> models/b.c -> models/c.c -> models/a.c"
# One's own static function of that name is no other file's.
{ printf 'static int a1(int x) { return x; }\n\n' && call c1 a1 | tail -n 1; } >models/c.c
python3 "$tidy" "$work/tree" >"$work/output" || { cat "$work/output" && failed=1; }

clean_tree && mkdir -p launcher/{options,setup,train,report,programs}
for pair in options:setup setup:report report:options train:programs report:train setup:programs; do
  from=launcher/${pair%:*} to=launcher/${pair#*:}
  echo '// A.' >"$to/a.h" && echo "#include \"$to/a.h\"" >"$from/up.c"
  expect "$from/ may not use $to/" && rm "$from/up.c"
done
clean_tree && for ((i = 0; i < 26; i++)); do echo 'extern int x;' >kernels/$i.c; done
expect "kernels:1: 26 modules; at most 25"

clean_tree && echo 'int f(void) { return MPI_Barrier(0); }' >launcher/f.c && expect "raw MPI (MPI_Barrier)"
clean_tree && echo '#include <mpi.h>' >runtime/exec/f.c && expect "raw MPI (mpi.h)"
clean_tree && echo 'FAMILY(llama, "llama", "LlamaForCausalLM")' >models/families.def
echo 'const char *f(void) { return "LlamaMLP"; }' >launcher/f.c
expect "launcher/f.c:1: the family Llama outside models/"
rm launcher/f.c && echo '// As Llama does.' >launcher/f.c && echo 'int llama;' >models/llama.c
python3 "$tidy" "$work/tree" >"$work/output" || { cat "$work/output" && failed=1; }
clean_tree
clean_tree && echo 'FSDP_OP(CAST, cast, ANY, "source[p] -> destination[p]", )' >models/graph/ops.def
echo 'int f(int op) { return op == FSDP_OP_CAST; }' >runtime/plan/f.c
expect "runtime/plan/f.c:1: the op FSDP_OP_CAST outside models/"
clean_tree && echo 'int f(void) { return ncclGetUniqueId(0); }' >runtime/exec/f.c
expect "raw NCCL (ncclGetUniqueId) outside runtime/comm/comm_nccl.c"
clean_tree && echo '#include <nccl.h>' >launcher/f.c && expect "raw NCCL (nccl.h)"
clean_tree && echo 'int f(void) { return cudaDeviceSynchronize(); }' >runtime/exec/f.c
expect "raw CUDA (cudaDeviceSynchronize)"
clean_tree && mkdir runtime/device
echo 'int f(void) { return cudaMallocHost(0, 1); }' >runtime/device/device_cuda.c
expect "CUDA memory (cudaMallocHost) outside runtime/device/memory_cuda.c"
clean_tree && mkdir kernels/cuda
echo 'int f(void) { return cublasLtCreate(0); }' >kernels/cuda/linear.cu
expect "raw cuBLASLt (cublasLtCreate)"

clean_tree && printf '// ---- Streams They are queues.\n// Of work.\n' >models/a.c
expect "models/a.c:1: a torn heading: it runs into"
clean_tree && printf '// They end. ---- Streams\n' >models/a.c
expect "models/a.c:1: a torn heading: it stands in"
clean_tree
printf '//   sections   parts of a\n//   a run      all of\n//   them tensors    ranges\n' >models/a.c
expect "models/a.c:3: a torn table"

clean_tree && word=no && echo "int nobody; // ${word}body reads it" >models/a.c
expect "models/a.c:1: \"nobody\" in a comment"
word=TO && echo "// ${word}DO: later" >models/later.c && expect "unfinished work"
clean_tree && word=FIX && echo "// ${word}ME" >models/later.c && expect "unfinished work"

clean_tree && printf '// A.\n#pragma once\n\nint fsdp_a_b(void);\n' >models/a.h
expect "models/a.h:4: fsdp_a_b has no comment"
clean_tree
printf '// A.\n#pragma once\n// C.\nint fsdp_c(int a,\n  int b);\n\nint fsdp_d(void);\n' >models/a.h
expect "models/a.h:7: fsdp_d has no comment"
clean_tree && printf '#pragma once\n' >models/a.h && expect "a header starts with a comment"
clean_tree && printf '// A.\n' >models/a.h && expect "no #pragma once"

clean_tree && echo >models/graph.o && expect "models/graph.o:1: a generated file"
clean_tree && head -c 2000001 /dev/zero >tests/golden.bin
expect "tests/golden.bin:1: more than 2,000,000 bytes"
if command -v git >/dev/null; then
  clean_tree && git init -q . && echo '/outputs/' >.gitignore && mkdir outputs && echo >outputs/x &&
    git add -f outputs/x && expect "outputs/x:1: tracked, though"
fi
if command -v clang-format >/dev/null && clang-format --version | grep -q 'version 14\.'; then
  clean_tree && echo 'int   f( void );' >models/f.c && expect "models/f.c:1: not as clang-format lays it out"
fi

# What looks like a violation and is none: in comments and strings, and macros that hold braces.
clean_tree
{
  echo '// MPI_Send would wait; #include "runtime/plan/plan.h" is not one'
  echo '#define OPEN {'
  echo 'static const char *text = "MPI_Send {";'
  for ((i = 0; i < 60; i++)); do echo "static int f$i(void) { return $i; }"; done
} >models/fine.c
if ! python3 "$tidy" "$work/tree" >"$work/output"; then
  cat "$work/output"
  echo "found what is none"
  failed=1
fi
exit $failed
