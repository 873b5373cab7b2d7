// A fiber: its own stack and the place to resume from. Switching costs a few nanoseconds on x86-64 (six
// registers and the stack pointer), and a system call or two elsewhere (ucontext).
#pragma once

#include <cstddef>

namespace simt {

struct fiber {
  void *stack_pointer = nullptr; // x86-64
  void *context = nullptr;       // elsewhere: ucontext_t
  void *sanitizer_stack = nullptr;
  char *stack = nullptr; // NULL: the thread's own
  size_t stack_bytes = 0;
  size_t color = 0; // bytes that the stack begins below its end
};

// Prepares the fiber, whose stack is allocated on the first call, to start at `entry`, which never returns.
void fiber_prepare(fiber *f, void (*entry)());
// Saves the caller in `from` and resumes `to`.
void fiber_switch(fiber *from, fiber *to);
// The first thing that `entry` does. `from`: the fiber that switched to it.
void fiber_arrived(fiber *self, fiber *from);

} // namespace simt
