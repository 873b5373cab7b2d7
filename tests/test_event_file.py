"""--tensorboard: the event files, decoded by hand, hold what the JSON log holds."""

import json
import pathlib
import shutil
import struct
import tempfile

import programs

work = pathlib.Path(tempfile.mkdtemp(prefix="fsdp_events_"))


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def fields(data):
    """A protobuf message's fields as (number, value)."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            size, at = varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def events(path):
    data, at = path.read_bytes(), 0
    while at < len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        body = data[at + 12 : at + 12 + length]
        assert masked_crc(data[at : at + 8]) == crc
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked_crc(body)
        yield dict(fields(body))
        at += 16 + length


# RFC 3720's test of CRC32C: 32 bytes of zeros have 0x8a9136aa.
plain = (masked_crc(bytes(32)) - 0xA282EAD8) & 0xFFFFFFFF
assert (plain << 15 | plain >> 17) & 0xFFFFFFFF == 0x8A9136AA

options = ("-s", "32", "-b", "2", "--max-steps", "3", "--eval-split", "4", "--log", work / "log.jsonl")
process = programs.run("fsdp_train", *options, "--tensorboard", work / "board")
assert process.returncode == 0, process.stderr
lines = [json.loads(line) for line in (work / "log.jsonl").read_text().splitlines()]
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
    # Every number of the line, but those that TensorBoard has of itself or that are null.
    expected = {key: value for key, value in line.items() if value is not None and key != "global_step"}
    assert values.keys() == expected.keys(), values.keys() ^ expected.keys()
    assert all(abs(values[key] - expected[key]) <= 1e-6 * abs(expected[key]) for key in values)
assert "eval_loss" in lines[-1]

process = programs.run("fsdp_train", *options, "--tensorboard", work / "none" / "board")
messages = programs.errors(process, "fsdp_train")
assert process.returncode == 3 and len(messages) == 1 and "--tensorboard" in messages[0], process.stderr
shutil.rmtree(work)
