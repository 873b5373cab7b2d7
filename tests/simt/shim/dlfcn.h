// Replaces the system's dlfcn.h when the CUDA device runs on the CPU: the one library that it loads is the
// emulated NCCL (simt_nccl.cpp).
#pragma once

#define RTLD_NOW   2
#define RTLD_LOCAL 0

#ifdef __cplusplus
extern "C" {
#endif

#define dlopen  simt_dlopen
#define dlsym   simt_dlsym
#define dlerror simt_dlerror

void *dlopen(const char *file, int flags);
void *dlsym(void *library, const char *name);
char *dlerror(void);

#ifdef __cplusplus
}
#endif
