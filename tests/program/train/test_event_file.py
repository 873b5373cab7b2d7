"""--tensorboard: the event files, decoded by hand, hold what the JSON log holds."""

import struct

import programs
from event_records import events, fields, masked_crc

work = programs.folder("events")


# RFC 3720's test of CRC32C: 32 bytes of zeros have 0x8a9136aa.
plain = (masked_crc(bytes(32)) - 0xA282EAD8) & 0xFFFFFFFF
assert (plain << 15 | plain >> 17) & 0xFFFFFFFF == 0x8A9136AA

options = ("-s", "32", "-b", "2", "--max-steps", "3", "--eval-split", "4", "--log", work / "log.jsonl")
programs.run("fsdp_train", *options, "--tensorboard", work / "board", status=0)
lines = programs.log_of(work / "log.jsonl")
(file,) = (work / "board").iterdir()
assert "tfevents" in file.name
first, *rest = events(file)
assert first[3] == b"brain.Event:2"
assert [event[2] for event in rest] == [1, 2, 3]
for event, line in zip(rest, lines):
    assert struct.unpack("<d", event[1])[0] > 1.6e9
    values = {}
    for number, value in fields(event[5]):
        assert number == 1
        scalar = dict(fields(value))
        values[scalar[1].decode()] = struct.unpack("<f", scalar[2])[0]
    # Every number of the line, but the step, which an event has anyway.
    numbers = {key: value for key, value in line.items() if type(value) in (int, float)}
    expected = {key: value for key, value in numbers.items() if key != "global_step"}
    assert values.keys() == expected.keys(), values.keys() ^ expected.keys()
    assert all(abs(values[key] - expected[key]) <= 1e-6 * abs(expected[key]) for key in values)
assert "eval_loss" in lines[-1]

board = ["--tensorboard", "/dev/null/board"]
programs.refused("fsdp_train", *options, *board, status=3, parts=["--tensorboard"])
