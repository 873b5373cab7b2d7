#!/usr/bin/env python3
"""Plans and prices a training step by libfsdp_plan: plan.py LIBRARY NAME=TEXT..."""
import ctypes
import json
import sys

if len(sys.argv) < 2 or not all("=" in setting for setting in sys.argv[2:]):
    print("usage: plan.py LIBRARY NAME=TEXT... (libfsdp_plan.so; names as in fsdp_plan.h)", file=sys.stderr)
    sys.exit(2)
library = ctypes.CDLL(sys.argv[1])
library.fsdp_planner_create.restype = ctypes.c_void_p
library.fsdp_planner_error.restype = ctypes.c_char_p
for name in ("plan", "price", "search"):
    getattr(library, "fsdp_planner_" + name).restype = ctypes.c_void_p
planner = ctypes.c_void_p(library.fsdp_planner_create())
for name, text in (setting.split("=", 1) for setting in sys.argv[2:]):
    if library.fsdp_planner_set(planner, name.encode(), text.encode()):
        sys.exit("plan.py: " + library.fsdp_planner_error(planner).decode())
for name in ("plan", "price"):
    answer = ctypes.c_void_p(getattr(library, "fsdp_planner_" + name)(planner))
    if not answer:
        sys.exit("plan.py: " + library.fsdp_planner_error(planner).decode())
    print(json.dumps(json.loads(ctypes.string_at(answer))))
    library.fsdp_planner_free(answer)
library.fsdp_planner_destroy(planner)
