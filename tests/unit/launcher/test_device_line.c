// Signs of a GPU, in folders made for it, and how the device is described.
#include "launcher/report/device_line.h"
#include "tests/support/io_files.h"
#include "tests/support/unit_test.h"

#include <string.h>
#include <sys/stat.h>

static void make_folders(const char *const *names, int count) {
  for (int i = 0; i < count; i++) assert_int_equal(mkdir(io_path(names[i]), 0777), 0);
}

TEST_WITH_FOLDER(signs_of_a_gpu) {
  const char *root = io_folder();
  char sign[96] = "";
  assert_false(fsdp_device_line_find_gpu(root, sign, sizeof sign)); // nothing at all
  static const char *const folders[] = {"dev",
                                        "sys",
                                        "sys/bus",
                                        "sys/bus/pci",
                                        "sys/bus/pci/devices",
                                        "sys/bus/pci/devices/0000:00:01.0",
                                        "sys/bus/pci/devices/0000:00:02.0",
                                        "sys/bus/pci/devices/0000:00:03.0"};
  make_folders(folders, (int)(sizeof folders / sizeof *folders));
  io_write_text("dev/nvidiactl", ""); // of a driver, no GPU
  io_write_text("dev/nvidia-uvm", "");
  io_write_text("sys/bus/pci/devices/0000:00:01.0/vendor", "0x8086\n"); // a display of a different vendor
  io_write_text("sys/bus/pci/devices/0000:00:01.0/class", "0x030000\n");
  io_write_text("sys/bus/pci/devices/0000:00:02.0/vendor", "0x10de\n"); // NVIDIA's sound and network
  io_write_text("sys/bus/pci/devices/0000:00:02.0/class", "0x040300\n");
  assert_false(fsdp_device_line_find_gpu(root, sign, sizeof sign));
  io_write_text("sys/bus/pci/devices/0000:00:03.0/vendor", "0x10de\n");
  io_write_text("sys/bus/pci/devices/0000:00:03.0/class", "0x030200\n");
  assert_true(fsdp_device_line_find_gpu(root, sign, sizeof sign));
  assert_string_equal(sign, "PCI device 0000:00:03.0");
  io_write_text("dev/nvidia3", "");
  assert_true(fsdp_device_line_find_gpu(root, sign, sizeof sign));
  assert_string_equal(sign, "/dev/nvidia3");
}

TEST(lines) {
  char line[512];
  fsdp_gpu gpu = {.present = false};
  fsdp_device_line_print(&gpu, 1, "why", line, sizeof line);
  assert_string_equal(line, "cpu, 1 thread per rank; why");
  gpu = (fsdp_gpu){.present = true, .name = "NVIDIA H200", .capability = 90, .total_bytes = 150000000000};
  fsdp_device_line_print(&gpu, 8, "why", line, sizeof line);
  assert_string_equal(line, "NVIDIA H200, 150 GB, compute capability 9.0");
  gpu.sharers = 4;
  fsdp_device_line_print(&gpu, 8, "why", line, sizeof line);
  assert_string_equal(line, "NVIDIA H200, 150 GB, compute capability 9.0, shared by 4 ranks");
}
