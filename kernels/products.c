#include "kernels/products.h"

#include "runtime/base/progress.h"

int fsdp_products_measure(const fsdp_product_library *library) {
  int count, measured = 0;
  const fsdp_product *products = library->noted(&count);
  for (int i = 0; i < count; i++) {
    if (products[i].chosen) continue;
    library->measure(i);
    measured++;
    fsdp_progress_mark(); // it takes a while
  }
  return measured;
}
