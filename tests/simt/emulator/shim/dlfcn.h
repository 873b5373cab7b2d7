// Goes before the system's dlfcn.h when the CUDA device runs on the CPU: the one library that it loads is the
// emulated NCCL (simt_nccl.cpp).
#pragma once

#include_next <dlfcn.h>

#ifdef __cplusplus
extern "C" {
#endif

void *simt_dlopen(const char *file, int flags);
void *simt_dlsym(void *library, const char *name);
char *simt_dlerror(void);

#ifdef __cplusplus
}
#endif

#define dlopen  simt_dlopen
#define dlsym   simt_dlsym
#define dlerror simt_dlerror
