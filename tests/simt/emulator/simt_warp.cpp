// A warp's gemm, mma.m16n8k16: gathered from its lanes' fragments, multiplied, and scattered back.
#include <simt_language.h>

namespace simt {

namespace {

float low_half(uint32_t pair) {
  return __uint_as_float(pair << 16);
}

float high_half(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// Most of the time of a test of attention; so it uses vectors if the core has them.
#if defined(__x86_64__) && !defined(FSDP_SANITIZE_ADDRESS)
__attribute__((target_clones("avx2", "default")))
#endif
void multiply_matrices(const float (&a)[16][16], const float (&b)[16][8], float (&d)[16][8]) {
  for (int m = 0; m < 16; m++)
    for (int k = 0; k < 16; k++)
      for (int n = 0; n < 8; n++) d[m][n] += a[m][k] * b[k][n];
}

} // namespace

void multiply(void *const *arguments, uint32_t) {
  float a[16][16], b[16][8], d[16][8];
  for (int lane = 0; lane < warp_size; lane++) {
    auto *from = static_cast<product *>(arguments[lane]);
    int g = lane / 4, t = lane % 4 * 2;
    for (int i = 0; i < 4; i++) {
      int row = g + i % 2 * 8, column = t + i / 2 * 8;
      a[row][column] = low_half(from->a[i]);
      a[row][column + 1] = high_half(from->a[i]);
    }
    for (int i = 0; i < 2; i++) {
      b[t + i * 8][g] = low_half(from->b[i]);
      b[t + i * 8 + 1][g] = high_half(from->b[i]);
    }
    for (int i = 0; i < 4; i++) d[g + i / 2 * 8][t + i % 2] = from->d[i];
  }
  multiply_matrices(a, b, d);
  for (int lane = 0; lane < warp_size; lane++) {
    auto *to = static_cast<product *>(arguments[lane]);
    for (int i = 0; i < 4; i++) to->d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

} // namespace simt
