#include "tests/simt/emulator/simt_fiber.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(FSDP_SANITIZE_ADDRESS)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace simt {

namespace {
constexpr size_t stack_bytes = size_t(256) << 10; // resident only as far as it is used
// Stacks begin at different offsets in their pages: at the same one, those of a warp would all need the same
// few lines of the cache.
constexpr size_t colors = 16, color_bytes = 256;
size_t made;
} // namespace

#if defined(__x86_64__)
// void simt_swap(void **save, void *load): the callee-saved registers stay on the stack that is left.
extern "C" void simt_swap(void **save, void *load);
asm(R"(
.text
.globl simt_swap
.type simt_swap, @function
simt_swap:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_swap, .-simt_swap
)");
#endif

void fiber_prepare(fiber *f, void (*entry)()) {
  if (!f->stack) {
    void *stack = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) {
      perror("simt: a fiber's stack");
      abort();
    }
    f->stack = static_cast<char *>(stack);
    f->stack_bytes = stack_bytes;
    f->color = made++ % colors * color_bytes;
  }
  f->sanitizer_stack = nullptr;
#if defined(FSDP_SANITIZE_ADDRESS)
  __asan_unpoison_memory_region(f->stack, stack_bytes); // what the last one to run here has left
#endif
#if defined(__x86_64__)
  // As the stack looks after a call: the return address at 8 modulo 16.
  auto *top = reinterpret_cast<void **>(f->stack + stack_bytes - 64 - f->color);
  *--top = nullptr;
  *--top = reinterpret_cast<void *>(entry);
  for (int i = 0; i < 6; i++) *--top = nullptr;
  f->stack_pointer = top;
#else
  if (!f->context) f->context = calloc(1, sizeof(ucontext_t));
  auto *context = static_cast<ucontext_t *>(f->context);
  getcontext(context);
  context->uc_stack.ss_sp = f->stack;
  context->uc_stack.ss_size = stack_bytes;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
#endif
}

void fiber_switch(fiber *from, fiber *to) {
#if defined(FSDP_SANITIZE_ADDRESS)
  __sanitizer_start_switch_fiber(&from->sanitizer_stack, to->stack, to->stack_bytes);
#endif
#if defined(__x86_64__)
  simt_swap(&from->stack_pointer, to->stack_pointer);
#else
  if (!from->context) from->context = calloc(1, sizeof(ucontext_t));
  swapcontext(static_cast<ucontext_t *>(from->context), static_cast<ucontext_t *>(to->context));
#endif
#if defined(FSDP_SANITIZE_ADDRESS)
  __sanitizer_finish_switch_fiber(from->sanitizer_stack, nullptr, nullptr);
#endif
}

void fiber_arrived(fiber *self, fiber *from) {
#if defined(FSDP_SANITIZE_ADDRESS)
  const void *bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(self->sanitizer_stack, &bottom, &bytes);
  if (!from->stack) { // the thread's own stack, which only the sanitizer knows
    from->stack = const_cast<char *>(static_cast<const char *>(bottom));
    from->stack_bytes = bytes;
  }
#else
  (void)self;
  (void)from;
#endif
}

} // namespace simt
