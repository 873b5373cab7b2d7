// Algorithms of products, as earlier runs on the same kind of GPU have measured them, on this machine's disk.
#pragma once

#include "kernels/products.h"

#include <stddef.h>

// `kind` says of which GPU, driver and library: others have files of their own. Chooses, of `products`
// without an algorithm, those that are remembered and that the library runs; returns their number. A file
// that cannot be used is reported in one line, and nothing is chosen.
int fsdp_product_cache_recall(const fsdp_product_library *library, const char *kind);

// Remembers all products noted, beside those of other programs. What fails is reported in one line.
void fsdp_product_cache_store(const fsdp_product_library *library, const char *kind);
