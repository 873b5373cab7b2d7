// Products whose algorithm a library chooses, as seen from outside of it: what it is chosen by, and the
// choice.
//
//   prepare(call) of every call ─► noted: a list in the order of the program, the same on every rank
//   alignments: the least of all ranks ─► an algorithm each, measured on one rank ─► set on all of them
//
// So ranks run the same algorithms (runtime/exec/product_choice.h). Needs the library to be open.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Of a matrix's address, in bytes, by which algorithms differ.
enum { FSDP_PRODUCT_A, FSDP_PRODUCT_B, FSDP_PRODUCT_C, FSDP_PRODUCT_BIAS, FSDP_PRODUCT_MATRICES };

// A product's shape: all of its bytes are compared but `alignment`, so it has no padding.
typedef struct fsdp_product_key {
  int64_t m, n, k, a_stride, b_stride, c_stride;
  int32_t ab_dtype, c_dtype;
  uint8_t a_transposed, b_transposed, adds, biased, unused[2];
  uint16_t multiprocessors;                  // that it is cut for; 0: all
  uint32_t alignment[FSDP_PRODUCT_MATRICES]; // the least of all products of this shape; 256 at most
} fsdp_product_key;

#define FSDP_PRODUCT_SHAPE_BYTES offsetof(fsdp_product_key, alignment)

// Only the library can read it, in the version that made it.
typedef struct fsdp_product_algorithm {
  uint64_t words[8];
} fsdp_product_algorithm;

typedef struct fsdp_product {
  fsdp_product_key key;
  fsdp_product_algorithm algorithm;
  bool chosen; // false: the library's first guess would run
} fsdp_product;

typedef struct fsdp_product_library {
  // "cuBLASLt 13.1.0".
  void (*name)(char *out, size_t bytes);
  // How many algorithms `measure` times at most: what is chosen depends on it.
  int (*candidates)(void);
  // Products noted from now on, until the library is closed, are cut for so many multiprocessors, so that a
  // collective's kernel on the others leaves none of a product's blocks for a second turn. 0: all.
  void (*limit)(int multiprocessors);
  // Those noted since the library was opened. The caller may lower alignments, and choose algorithms that
  // `runs` has accepted.
  fsdp_product *(*noted)(int *count);
  // Whether the library knows the algorithm, and can run it for this product.
  bool (*runs)(const fsdp_product *product);
  // Times a few algorithms on the memory that product `index` was noted with, and chooses the fastest. That
  // memory holds random numbers meanwhile and NaNs afterwards.
  void (*measure)(int index);
} fsdp_product_library;

// Measures every product noted that has no algorithm yet; returns their number.
int fsdp_products_measure(const fsdp_product_library *library);

#ifdef __cplusplus
}
#endif
