"""The `.tok` format (runtime/data/token_file.h has its table): writing, reading back and checking."""
import contextlib
import os
import shutil
import struct
import sys
import tempfile
import zlib
from array import array

from common.errors import InputError

MAGIC = b"fsdp-tok"
VERSION = 1
HEADER = struct.Struct("<8s4I4qQ2q4I2q2I")  # all but the checksum of these 120 bytes
HEADER_BYTES = HEADER.size + 8
FLAG_PACKED, FLAG_BYTES, FLAG_JOINED = 1, 2, 4  # nothing reads the first: the trainer makes its rows
TYPECODES = {1: "B", 2: "H", 4: "I"}
BLOCK = 1 << 22

_P1, _P2, _P3, _P4, _P5 = (11400714785074694791, 14029467366897019727, 1609587929392839161,
                           9650029242287828579, 2870177450012600261)
_M = (1 << 64) - 1


def _rotate(x, bits):
    return (x << bits | x >> (64 - bits)) & _M


def _round(lane, word):
    return _rotate((lane + word * _P2) & _M, 31) * _P1 & _M


def xxh64(data):
    """XXH64 with seed 0 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md); the standard library has none."""
    size = len(data)
    at = size // 32 * 32
    if size >= 32:
        lanes = [(_P1 + _P2) & _M, _P2, 0, -_P1 & _M]
        for words in struct.iter_unpack("<4Q", data[:at]):
            lanes = [_round(lane, word) for lane, word in zip(lanes, words)]
        h = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18))) & _M
        for lane in lanes:
            h = ((h ^ _round(0, lane)) * _P1 + _P4) & _M
    else:
        h = _P5
    h = (h + size) & _M
    for at in range(at, size - 7, 8):
        h = (_rotate(h ^ _round(0, int.from_bytes(data[at:at + 8], "little")), 27) * _P1 + _P4) & _M
    at = size // 8 * 8
    if size - at >= 4:
        h = (_rotate(h ^ int.from_bytes(data[at:at + 4], "little") * _P1 & _M, 23) * _P2 + _P3) & _M
        at += 4
    for byte in data[at:]:
        h = _rotate(h ^ byte * _P5 & _M, 11) * _P1 & _M
    h = (h ^ h >> 33) * _P2 & _M
    h = (h ^ h >> 29) * _P3 & _M
    return h ^ h >> 32


def little_endian(values, token_bytes):
    """Bytes of an array of tokens as the file holds them."""
    values = array(TYPECODES[token_bytes], values)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def flags_of(is_bytes, joined=False):
    return FLAG_PACKED | FLAG_BYTES * bool(is_bytes) | FLAG_JOINED * bool(joined)


def _padding(size):
    return b"\0" * (-size % 8)


class Section:
    """A part of the file that grows beside the others, with its checksum."""

    def __init__(self, folder):
        self.file = tempfile.TemporaryFile(dir=folder)
        self.size = self.checksum = 0

    def add(self, data):
        self.file.write(data)
        self.size += len(data)
        self.checksum = zlib.crc32(data, self.checksum)

    def copy_to(self, out):
        self.file.seek(0)
        shutil.copyfileobj(self.file, out, BLOCK)
        out.write(_padding(self.size))
        self.file.close()


class Bits(Section):
    """A section of a bit for each of the digits that it is given."""

    def __init__(self, folder):
        super().__init__(folder)
        self.pending = b""  # digits that do not fill a byte yet
        self.ones = 0

    def add_digits(self, digits):
        self.ones += digits.count(b"1")
        digits = self.pending + digits
        whole = len(digits) // 8 * 8
        self._add_bytes(digits[:whole])
        self.pending = digits[whole:]

    def _add_bytes(self, digits):
        if digits:
            self.add(int(digits[::-1], 2).to_bytes((len(digits) + 7) // 8, "little"))

    def finish(self):
        self._add_bytes(self.pending)
        self.pending = b""


def _make_folders(folder):
    """Makes `folder`; those that were missing, the outermost last."""
    made = []
    while folder and not os.path.exists(folder):
        made.append(folder)
        folder = os.path.dirname(folder)
    if made:
        os.makedirs(made[0], exist_ok=True)
    return made


class Writer:
    """Writes beside `path` and renames at the end: `path` holds a whole file or what it held before."""

    def __init__(self, path, token_bytes):
        self.path, self.token_bytes = path, token_bytes
        self.partial = f"{path}.partial-{os.getpid()}"
        folder = os.path.dirname(path) or "."
        self.made = []
        try:
            self.made = _make_folders(folder)
            self.mask, self.starts, self.joined = Bits(folder), Section(folder), Bits(folder)
            self.out = open(self.partial, "wb")
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror}); give another --out") from None
        self.out.write(bytes(HEADER_BYTES))
        self.tokens = self.documents = self.checksum = 0

    @property
    def targets(self):
        return self.mask.ones

    def add(self, tokens, mask, starts, joined=None):
        """Tokens as bytes, a digit 0 or 1 for each, and where documents start, from these tokens' first; for
        each document a digit, 1 if it is of the record of the one before (None: none is)."""
        self.out.write(tokens)
        self.checksum = zlib.crc32(tokens, self.checksum)
        self.starts.add(b"".join(struct.pack("<Q", self.tokens + start) for start in starts))
        self.documents += len(starts)
        self.tokens += len(mask)
        self.mask.add_digits(mask)
        self.joined.add_digits(b"0" * len(starts) if joined is None else joined)

    def finish(self, header):
        """Completes the file. `header`: vocabulary, bytes, tokenizer_hash, first, last, template."""
        self.mask.finish()
        self.joined.finish()
        token_section = self.tokens * self.token_bytes
        self.out.write(_padding(token_section))
        self.mask.copy_to(self.out)
        self.starts.copy_to(self.out)
        template = (header["template"] or "").encode()
        self.out.write(template + _padding(len(template)))
        if self.joined.ones:
            self.joined.copy_to(self.out)
        flags = flags_of(header["bytes"], self.joined.ones)
        fields = HEADER.pack(MAGIC, VERSION, HEADER_BYTES, self.token_bytes, flags, header["vocabulary"],
                             self.tokens, self.documents, self.targets, header["tokenizer_hash"],
                             header["first"], header["last"], self.checksum, self.mask.checksum,
                             self.starts.checksum, zlib.crc32(template), self.out.tell(), len(template),
                             self.joined.checksum if self.joined.ones else 0, 0)
        self.out.seek(0)
        self.out.write(fields + struct.pack("<Q", xxh64(fields)))
        self.out.flush()
        os.fsync(self.out.fileno())
        self.out.close()
        os.replace(self.partial, self.path)

    def abandon(self):
        """Leaves nothing of an unfinished file."""
        with contextlib.suppress(OSError):  # what is buffered has no room on a full disk
            self.out.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.partial)
        for folder in self.made:
            with contextlib.suppress(OSError):  # somebody has put a file there
                os.rmdir(folder)


def _checksum(file, size):
    checksum = 0
    for begin in range(0, size, BLOCK):
        checksum = zlib.crc32(file.read(min(BLOCK, size - begin)), checksum)
    file.read(-size % 8)
    return checksum


def verify(path):
    """Checks the whole file at `path` and returns its header as a dictionary."""
    def damaged(what):
        return InputError(f"{path}: is damaged: {what}; prepare it again")

    try:
        file = open(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be opened ({error.strerror})") from None
    with file:
        head = file.read(HEADER_BYTES)
        if len(head) < HEADER_BYTES or head[:8] != MAGIC:
            raise InputError(f"{path}: is not a .tok file")
        names = ("magic version header_bytes token_bytes flags vocabulary tokens documents targets "
                 "tokenizer_hash first last crc_tokens crc_mask crc_starts crc_template file_bytes template "
                 "crc_joined zero").split()
        h = dict(zip(names, HEADER.unpack(head[:HEADER.size])))
        if h["version"] != VERSION:
            raise InputError(f"{path}: has version {h['version']} of the format, not {VERSION}")
        if struct.unpack("<Q", head[HEADER.size:])[0] != xxh64(head[:HEADER.size]):
            raise damaged("its header does not match its checksum")
        if os.fstat(file.fileno()).st_size != h["file_bytes"]:
            raise damaged("its size is not the one that its header declares")
        for name, size in (("tokens", h["tokens"] * h["token_bytes"]), ("mask", (h["tokens"] + 7) // 8),
                           ("starts", h["documents"] * 8), ("template", h["template"]),
                           ("joined", (h["documents"] + 7) // 8 if h["flags"] & FLAG_JOINED else 0)):
            if _checksum(file, size) != h[f"crc_{name}"]:
                raise damaged(f"its {name} do not have the checksum that the header declares")
    return h
