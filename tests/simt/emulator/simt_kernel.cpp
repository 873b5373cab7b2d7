// Kernels as a launch sees them: their names, their limits, and what is refused.
#include "tests/simt/emulator/simt.h"

#include <cuda_runtime_api.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <elf.h>
#include <fstream>
#include <link.h>
#include <map>
#include <mutex>

// Where each kernel's one-byte instructions begin, by the linker; absent if no kernel has bounds.
extern "C" {
extern const char *__start___patchable_function_entries[] __attribute__((weak));
extern const char *__stop___patchable_function_entries[] __attribute__((weak));
}

namespace simt {

namespace {

struct kernel_limits {
  uint32_t shared_dynamic = 0; // by cudaFuncSetAttribute; 0: no opt-in
  uint32_t shared_static = 0;  // by the blocks that have run
  bool used = false;
};

std::mutex gate;
std::map<const void *, kernel_limits> limits;
std::string refusal;

// Whether the bytes from `from` to `to` are nothing but such instructions.
bool are_idle(const char *from, const char *to) {
#if defined(__aarch64__)
  const unsigned char idle[] = {0x1f, 0x20, 0x03, 0xd5};
#else
  const unsigned char idle[] = {0x90};
#endif
  for (long i = 0; i < to - from; i++)
    if (static_cast<unsigned char>(from[i]) != idle[size_t(i) % sizeof idle]) return false;
  return true;
}

#if defined(__aarch64__)
constexpr int instruction_bytes = 4;
#else
constexpr int instruction_bytes = 1;
#endif

cudaError_t refuse(cudaError_t status, const void *kernel, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
cudaError_t refuse(cudaError_t status, const void *kernel, const char *format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  refusal = kernel_name(kernel) + ": " + text;
  fprintf(stderr, "simt: a launch is refused: %s\n", refusal.c_str());
  return status;
}

// Of the program's own file, as it was loaded.
uintptr_t load_address() {
  uintptr_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info *info, size_t, void *out) {
        *static_cast<uintptr_t *>(out) = info->dlpi_addr;
        return 1; // the program is the first
      },
      &address);
  return address;
}

template <class T> std::vector<T> read_table(std::ifstream *file, uint64_t offset, size_t count) {
  std::vector<T> table(count);
  file->seekg(std::streamoff(offset));
  file->read(reinterpret_cast<char *>(table.data()), std::streamsize(count * sizeof(T)));
  return table;
}

// The function's name in the symbol table, which holds the kernels of anonymous namespaces too; "" where the
// program has been stripped.
std::string symbol_at(const void *function) {
  const uintptr_t wanted = reinterpret_cast<uintptr_t>(function) - load_address();
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const auto header = read_table<ElfW(Ehdr)>(&file, 0, 1)[0];
  const auto sections = read_table<ElfW(Shdr)>(&file, header.e_shoff, header.e_shnum);
  for (const auto &section : sections) {
    if (section.sh_type != SHT_SYMTAB) continue;
    const auto &names = sections[section.sh_link];
    const auto text = read_table<char>(&file, names.sh_offset, names.sh_size);
    for (const auto &symbol :
         read_table<ElfW(Sym)>(&file, section.sh_offset, section.sh_size / sizeof(ElfW(Sym))))
      if (symbol.st_value == wanted && symbol.st_name && (symbol.st_info & 0xf) == STT_FUNC)
        return text.data() + symbol.st_name;
  }
  return "";
}

} // namespace

std::string kernel_name(const void *kernel) {
  if (!kernel) return "a kernel";
  const std::string symbol = symbol_at(kernel);
  int status = 1;
  char *readable = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  std::string name = status == 0 ? readable : symbol.empty() ? "a kernel" : symbol;
  free(readable);
  const std::string nobody = "(anonymous namespace)::";
  for (size_t at; (at = name.find(nobody)) != std::string::npos;) name.erase(at, nobody.size());
  if (name.compare(0, 5, "void ") == 0) name.erase(0, 5);
  // Up to the parameters, the last pair of parentheses.
  size_t at = name.size();
  for (int depth = 0; at > 0; at--) {
    depth += name[at - 1] == ')' ? 1 : name[at - 1] == '(' ? -1 : 0;
    if (depth == 0) break;
  }
  return at > 1 ? name.substr(0, at - 1) : name;
}

int launch_bounds(const void *kernel) {
  const auto *entry = static_cast<const char *>(kernel);
  if (!kernel || !__start___patchable_function_entries) return threads_max;
  for (const char **at = __start___patchable_function_entries; at < __stop___patchable_function_entries;
       at++) {
    const long bytes = entry - *at;
    if (bytes > 0 && bytes <= threads_max * instruction_bytes && are_idle(*at, entry))
      return int(bytes / instruction_bytes);
  }
  return threads_max;
}

int capability() {
  const char *text = std::getenv("FSDP_SIMT_CAPABILITY");
  return text ? atoi(text) : 90;
}

uint32_t shared_bytes_device() {
  const int of = capability();
  const int kib = of == 80 || of == 87 ? 163 : of >= 90 && of <= 110 ? 227 : 99;
  return uint32_t(kib) * 1024;
}

bool allow_shared(const void *kernel, int bytes) {
  std::lock_guard<std::mutex> lock(gate);
  kernel_limits &own = limits[kernel];
  if (bytes < 0 || uint32_t(bytes) + own.shared_static > shared_bytes_device()) {
    refuse(cudaErrorInvalidValue, kernel,
           "cudaFuncSetAttribute asks for %d bytes of shared memory, sm_%d has %u", bytes, capability(),
           shared_bytes_device());
    return false;
  }
  own.shared_dynamic = uint32_t(bytes);
  return true;
}

uint32_t shared_bytes_allowed(const void *kernel) {
  std::lock_guard<std::mutex> lock(gate);
  const auto own = limits.find(kernel);
  const bool opted = own != limits.end() && own->second.shared_dynamic > shared_bytes_default;
  return opted ? shared_bytes_device() : shared_bytes_default;
}

void note_static_shared(const void *kernel, uint32_t bytes) {
  std::lock_guard<std::mutex> lock(gate);
  kernel_limits &own = limits[kernel];
  own.shared_static = std::max(own.shared_static, bytes);
}

int check_launch(const launch_shape &shape) {
  const dim3 &grid = shape.grid, &block = shape.block;
  const uint64_t count = uint64_t(block.x) * block.y * block.z;
  const void *kernel = shape.kernel;
  refusal.clear();
  if (!grid.x || !grid.y || !grid.z || !count || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 ||
      block.z > 64 || count > uint64_t(threads_max))
    return refuse(cudaErrorInvalidConfiguration, kernel,
                  "no device takes a grid of (%u,%u,%u) blocks of (%u,%u,%u)", grid.x, grid.y, grid.z,
                  block.x, block.y, block.z);
  if (count > uint64_t(launch_bounds(kernel)))
    return refuse(cudaErrorInvalidValue, kernel, "%u threads per block, but __launch_bounds__(%d)",
                  unsigned(count), launch_bounds(kernel));
  std::lock_guard<std::mutex> lock(gate);
  const kernel_limits &own = limits[kernel];
  const uint32_t dynamic = std::max(own.shared_dynamic, shared_bytes_default - own.shared_static);
  if (shape.shared_bytes > dynamic)
    return refuse(cudaErrorInvalidValue, kernel,
                  "%zu bytes of dynamic shared memory, but %u are allowed without "
                  "cudaFuncSetAttribute(cudaFuncAttributeMaxDynamicSharedMemorySize) for more",
                  shape.shared_bytes, dynamic);
  return cudaSuccess;
}

const std::string &last_refusal() {
  return refusal;
}

bool is_first_use(const void *kernel) {
  std::lock_guard<std::mutex> lock(gate);
  bool &used = limits[kernel].used;
  const bool first = !used;
  used = true;
  return first;
}

} // namespace simt

extern "C" cudaError_t cudaFuncGetName(const char **name, const void *function) {
  static std::map<const void *, std::string> names;
  const auto found = names.emplace(function, "").first;
  if (found->second.empty()) found->second = simt::symbol_at(function);
  *name = found->second.c_str();
  return cudaSuccess;
}
