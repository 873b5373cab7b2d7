// A CUDA kernel beside its CPU twin: the same operands, bits at the start and interface; results compared.
//
// The sources of these tests are compiled twice: for the CPU (tests/simt, every kernel under three orders of
// its threads and blocks) and for a GPU (the same runs, three times over). In both, each operand has its own
// allocation. In the first run that has exactly its size, with nothing in outputs (for memcheck and
// initcheck). In later runs it lies between red zones, with signalling NaNs in outputs. Operands that are
// only read must keep their bits, red zones must not change, and results must have the same bits each time.
#pragma once

#include "kernels/kernels.h"

#include <set>
#include <string>
#include <vector>

struct twin_operand {
  fsdp_dtype dtype;
  fsdp_access access;
  int64_t numel;
  std::vector<unsigned char> initial;
  bool is_compared = true;
  bool is_cuda_only = false; // workspace
  bool is_cpu_only = false;  // one that the CUDA device does without
  bool is_unwritten = false; // before the kernel: holds NaNs, or whatever it held
  int64_t cuda_numel = 0;    // if it differs
  int64_t untouched = 0;     // elements at the end that the op leaves alone
};

struct twin_case {
  std::string name;
  fsdp_op_kind kind;
  fsdp_op_attrs attrs;
  double tolerance; // of ||cuda - cpu|| / ||cpu||, per operand
  std::vector<twin_operand> operands;
  std::vector<fsdp_param_run> segments;
  uint64_t seed = 0;
  double bits_equal_least = 0; // share of bf16 elements that must have exactly the CPU's bits
};

// bf16 keeps 8 bits; fp32 sums of a few thousand terms in a different order.
double twin_tolerance(fsdp_dtype dtype);

twin_case twin_of(fsdp_op_kind kind, const fsdp_op_attrs &attrs, fsdp_dtype dtype);

// Operands, in the op's order. Inputs (and what is updated) hold normal numbers times `deviation`, drawn by
// case and operand; outputs hold NaNs.
void twin_input(twin_case *c, fsdp_dtype dtype, int64_t numel, double deviation = 1);
void twin_update(twin_case *c, fsdp_dtype dtype, int64_t numel, double deviation = 1);
void twin_output(twin_case *c, fsdp_dtype dtype, int64_t numel);
// Updated or written, as `updates` says.
void twin_result(twin_case *c, bool updates, fsdp_dtype dtype, int64_t numel);
void twin_integers(twin_case *c, const std::vector<int32_t> &values);
void twin_values(twin_case *c, fsdp_dtype dtype, const std::vector<float> &values, fsdp_access access);
void twin_floats(twin_case *c, const std::vector<float> &values, fsdp_access access = FSDP_READ);
// A workspace that the CPU has (`cpu_numel` > 0), the CUDA device, or both.
void twin_workspace(twin_case *c, int64_t cpu_numel);

// Which cases twin_check runs: all, or the part that FSDP_TEST_PART says; none, while it records the largest
// of each op and element type; or those. TWIN_MUTATE runs small ones with one operand after the other one
// element too short, or read before it is written, which must be noticed.
enum twin_choice { TWIN_ALL, TWIN_NOTE, TWIN_GREATEST, TWIN_MUTATE };
void twin_choose(twin_choice choice);
twin_choice twin_chosen();
// The kinds of the cases that TWIN_NOTE has seen.
std::set<int> twin_noted();

// Runs and compares; prints one line; counts failures. Returns the operands as the CPU left them (or, of a
// case that is not chosen, as they began).
std::vector<std::vector<unsigned char>> twin_check(const twin_case &c);
int twin_failures();
// Counts and prints the result of a comparison that a test makes itself.
void twin_report(bool good, const std::string &what);

// Element i of an operand.
float twin_value(fsdp_dtype dtype, const std::vector<unsigned char> &data, int64_t i);

// One run on the CUDA device alone: its operands' bits, workspaces left out.
std::vector<std::vector<unsigned char>> twin_run(const twin_case &c);

// Seconds of a launch on a GPU, the median of several by events.
#if !defined(FSDP_SIMT)
double twin_time_s(const twin_case &c);
#endif

// Compares results that `what` names with the tolerance; prints one line; counts failures.
void twin_compare(const std::string &what, fsdp_dtype dtype, const std::vector<unsigned char> &result,
                  fsdp_dtype expected_dtype, const std::vector<unsigned char> &expected, double tolerance);

// Which tensor-core kernels of attention, and of products grouped by expert, run where they can: mma unless
// these are called.
void twin_use_attention(fsdp_attention_kernel kernel);
void twin_use_grouped(fsdp_grouped_kernel kernel);

// The groups of cases (twin_<group>.cpp).
void twin_rows();
void twin_flat();
void twin_products();
void twin_experts();
// Products grouped by expert in bf16, also of large shapes; not among `all`.
void twin_grouped();
void twin_attention_fp32();
void twin_attention_bf16();
// Changing one document changes no bit of another's results; not among `all`.
void twin_attention_leaks();
void twin_rest();
// A production shape in bf16 against the general kernels in fp32, on the CUDA device alone; not among `all`.
void twin_attention_production();
