"""Input files as chunks: pieces of bounded size, cut by rules that look at the file alone.

So the same files make the same chunks, and the same tokens, however many processes share them.
"""
import contextlib
import csv
import gzip
import io
import json
import os
import re
import struct
import zlib

from common.errors import InputError
from prepare.forms import FIELDS, KEYS, BadRecord
from prepare.records import DECODER

CHUNK_BYTES = 1 << 20
BATCH_RECORDS = 512
PIECE_BYTES = 1 << 18
CUT_SEARCH_BYTES = 1 << 18
RECORD_CHARS_MAX = 1 << 26
SPACE = re.compile(r"[ \t\r\n]*")
# A break of lines between two words: no tokenizer in use joins what is before it with what follows.
CLEAN_CUT = re.compile(rb"(?<=\S\n)(?=\S)|(?<=\S\r\n)(?=\S)")
LLMC_HEADER_BYTES = 1024
LLMC_MAGICS = {20240520: (1, 2), 20240801: (7, 4)}  # version, bytes of a token


class Chunk:
    """kind: "lines" (bytes of whole lines), "objects" (a list of (place, record, or a BadRecord)), "piece"
    (bytes of a text) or "tokens" (bytes of tokens). `size` is what it adds to the progress, in bytes of
    input; `ignored` names what each of its records has besides, and was not read."""

    def __init__(self, kind, path, line, data, **more):
        self.kind, self.path, self.line, self.data, self.size = kind, path, line, data, 0
        self.ignored = more.get("ignored", ())
        self.first = more.get("first", True)  # of its file
        self.last = more.get("last", True)
        self.token_bytes = more.get("token_bytes", 0)


def _line_chunks(path, file, _):
    line, rest, first = 1, b"", True
    while True:
        block = file.read(CHUNK_BYTES)
        data = rest + block
        if first:
            data = data.removeprefix(b"\xef\xbb\xbf")
            if data.lstrip().startswith(b"["):
                _check_first_line(path, data, "is a list of records over several lines; name the file .json")
        end = data.rfind(b"\n") + 1 if block else len(data)
        if end:
            yield Chunk("lines", path, line, data[:end])
            line += data.count(b"\n", 0, end)
        rest, first = data[end:], False
        if not block:
            return


def _cut(data):
    """Where to end a piece of more than PIECE_BYTES: at a clean cut if one is near, or a line, or a space."""
    near = min(len(data), PIECE_BYTES + CUT_SEARCH_BYTES)
    match = CLEAN_CUT.search(data, PIECE_BYTES, near - 1)
    if match:
        return match.start()
    for mark, after in ((b"\n", 1), (b" ", 0)):
        at = data.find(mark, PIECE_BYTES, near - 1)
        if at > 0:
            return at + after
    at = PIECE_BYTES
    while at < len(data) and data[at] & 0xC0 == 0x80:  # inside of a character
        at += 1
    return at


def _text_chunks(path, file, _):
    line, data, first, ended = 1, b"", True, False
    while True:
        while not ended and len(data) < PIECE_BYTES + CUT_SEARCH_BYTES:
            block = file.read(CHUNK_BYTES)
            data += block
            ended = not block
        end = len(data) if len(data) <= PIECE_BYTES else _cut(data)
        last = end == len(data) and ended
        yield Chunk("piece", path, line, data[:end], first=first, last=last)
        if last:
            return
        line += data.count(b"\n", 0, end)
        data, first = data[end:], False


class _ArrayReader:
    """Values of a JSON array, one after the other, with their lines and numbers."""

    def __init__(self, path, file):
        self.path, self.file = path, file
        self.text, self.at, self.line, self.ended = "", 0, 1, False
        self.records = 0

    def fail(self, what, line=None):
        raise InputError(f"{self.path}:{line or self.line}: {what}")

    def read_more(self):
        block = self.file.read(max(CHUNK_BYTES, len(self.text) - self.at))
        self.text, self.at, self.ended = self.text[self.at:] + block, 0, not block

    def move(self, end):
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def next_mark(self):
        """Skips white space; the character after it, or "" at the end."""
        while True:
            self.move(SPACE.match(self.text, self.at).end())
            if self.at < len(self.text):
                return self.text[self.at]
            if self.ended:
                return ""
            self.read_more()

    def value(self):
        """(place in the file, value)"""
        self.next_mark()
        self.records += 1
        while True:
            try:
                value, end = DECODER.raw_decode(self.text, self.at)
                line = self.line
                self.move(end)
                return f"{line}: record {self.records}", value
            except RecursionError:
                self.fail(f"record {self.records}: not valid JSON (nested too deeply); fix it")
            except ValueError as error:
                if self.ended or len(self.text) - self.at > RECORD_CHARS_MAX:
                    line = self.line + self.text.count("\n", self.at, getattr(error, "pos", self.at))
                    reason = getattr(error, "msg", error)
                    self.fail(f"record {self.records}: not valid JSON ({reason}); fix it", line)
            self.read_more()

    def values(self):
        if self.next_mark() != "[":
            self.fail("a .json file is a list [..] of records; name one with an object per line .jsonl")
        self.at += 1
        mark = self.next_mark()
        while mark != "]":
            yield self.value()
            mark = self.next_mark()
            if mark not in (",", "]"):
                self.fail(f"record {self.records} must be followed by , or ]; the file is truncated or "
                          "malformed")
            self.at += mark == ","
        self.at += 1
        if self.next_mark():
            self.fail("something follows the end of the list; remove it")


def _batches(path, numbered):
    """Chunks of (place, record)s. What is wrong comes behind the chunks of what stands before it, which may
    have its own fault, to be reported first."""
    batch, fault = [], None
    while True:
        try:
            item = next(numbered, None)
        except (InputError, UnicodeDecodeError) as error:
            item, fault = None, error
        if item:
            batch.append(item)
        if len(batch) == BATCH_RECORDS or not item:
            yield Chunk("objects", path, 0, batch)
            batch = []
        if fault:
            raise fault
        if not item:
            return


def _check_first_line(path, head, message):
    """A line of records holds one: where the first line ends within its value, that has many lines, and is
    no record."""
    line, end, _ = head.lstrip().partition(b"\n")
    text = line.decode("utf-8", "replace").strip(" \t\r")
    try:
        DECODER.raw_decode(text)
    except (ValueError, RecursionError) as error:
        if end and getattr(error, "pos", 0) >= len(text):
            raise InputError(f"{path}: {message}") from None


def _array_chunks(path, file, settings):
    head = file.peek(64).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"{"):  # an object per line, whatever the ending
        _check_first_line(path, head, "is one object over several lines; give a list [..] of records, or an "
                                      "object per line")
        yield from _line_chunks(path, file, settings)
        return
    # newline="": lines are counted by \n alone, everywhere.
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    yield from _batches(path, _ArrayReader(path, text).values())


def _is_utf8(row):
    """Whether no byte of a row had to be escaped."""
    try:
        "".join(row).encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_columns(path, names, known):
    """The first line of a table names its columns. `known`: those that records have keys for."""
    if not _is_utf8(names):
        raise InputError(f"{path}:1: is not UTF-8; convert it")
    for mark in ";\t|":
        if len(names) == 1 and known & {name.strip() for name in names[0].split(mark)[1:]}:
            remedy = "name it .tsv" if mark == "\t" else "convert it to commas"
            raise InputError(f"{path}:1: the columns are separated by {json.dumps(mark)}; {remedy}")
    for name in names:
        if name not in known and name.strip() in known:
            raise InputError(f"{path}:1: the column {json.dumps(name)} has a blank beside its name; remove "
                             "that")
    if len(set(names)) < len(names) or not all(names):
        raise InputError(f"{path}:1: the first line of a table names its columns, each once; fix it")


def _rows(path, reader, known):
    """(line, record) of each row; a field without a value is None."""
    names = next(reader, [])
    _check_columns(path, names, known)
    line = reader.line_num + 1
    for row in reader:
        if row and len(row) != len(names):
            yield line, BadRecord(f"{path}:{line}: has {len(row)} field{'s' * (len(row) != 1)}, but the "
                                  f"first line names {len(names)}; fix it")
        elif row and not _is_utf8(row):
            yield line, BadRecord(f"{path}:{line}: is not UTF-8; convert it")
        elif row:
            yield line, {name: value or None for name, value in zip(names, row)}
        line = reader.line_num + 1


def _known(settings):
    return {*KEYS, *settings.fields.values()}


def _csv_chunks(path, file, settings):
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    csv.field_size_limit(RECORD_CHARS_MAX)
    dialect = csv.excel_tab if kind_of(path) == ".tsv" else csv.excel
    reader = csv.reader(text, dialect, strict=True)
    try:
        yield from _batches(path, _rows(path, reader, _known(settings)))
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: is not a readable table ({error}); fix it") from None


def _table_chunks(path, file, settings):
    """Rows as records of the columns that records have keys for. pyarrow is a package (environment.py)."""
    from pyarrow import ArrowException, parquet
    row, known = 1, _known(settings)
    try:
        table = parquet.ParquetFile(file)
        names = table.schema_arrow.names
        columns = [name for name in names if name in known]
        if not columns:
            raise InputError(f"{path}: has the columns {', '.join(names)}, of which none is a record's "
                             f"({', '.join(FIELDS)}); say which are, as --fields "
                             "prompt=question,completion=answer")
        for batch in table.iter_batches(batch_size=BATCH_RECORDS, columns=columns):
            records = batch.to_pylist()
            yield Chunk("objects", path, 0, list(enumerate(records, row)),
                        ignored=[name for name in names if name not in known])
            row += len(records)
    except ArrowException as error:
        raise InputError(f"{path}: is not a readable Parquet file ({error})") from None


def token_layout(path):
    """(bytes before the tokens, bytes of a token, number of tokens) of a .bin."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(LLMC_HEADER_BYTES)
    magic, version, count = struct.unpack("<3i", head[:12]) if len(head) == LLMC_HEADER_BYTES else (0, 0, 0)
    if magic in LLMC_MAGICS:
        wanted, token_bytes = LLMC_MAGICS[magic]
        if version != wanted:
            raise InputError(f"{path}: is llm.c's (magic {magic}) of version {version}, but {wanted} is read")
        if count < 1 or size != LLMC_HEADER_BYTES + count * token_bytes:
            raise InputError(f"{path}: its llm.c header declares {count} tokens, which its {size} bytes are "
                             "not: it is truncated or damaged; copy it again")
        return LLMC_HEADER_BYTES, token_bytes, count
    if size % 2:
        raise InputError(f"{path}: has neither llm.c's header nor, with {size} bytes, whole uint16 tokens "
                         "like nanoGPT's")
    return 0, 2, size // 2


def _token_chunks(path, file, _):
    begin, token_bytes, _ = token_layout(path)
    file.seek(begin)
    first = True
    while data := file.read(CHUNK_BYTES):
        yield Chunk("tokens", path, 0, data, first=first, token_bytes=token_bytes)
        first = False


READERS = {".jsonl": _line_chunks, ".json": _array_chunks, ".parquet": _table_chunks, ".csv": _csv_chunks,
           ".tsv": _csv_chunks, ".txt": _text_chunks, ".bin": _token_chunks}
GZIP_MAGIC = b"\x1f\x8b"
GZIPPED = (".jsonl", ".json", ".csv", ".tsv", ".txt")


def _endings(path):
    """(the kind of file, whether it is compressed by gzip)"""
    stem, ending = os.path.splitext(path)
    if ending.lower() == ".gz":
        return os.path.splitext(stem)[1].lower(), True
    return ending.lower(), False


def kind_of(path):
    return _endings(path)[0]


def check(path):
    """Refuses, before any work, what can be seen to be wrong."""
    if os.path.isdir(path):
        raise InputError(f"{path}: is a folder; give the files in it")
    kind, is_zipped = _endings(path)
    if kind in (".zst", ".xz", ".bz2", ".zip"):
        raise InputError(f"{path}: is compressed; decompress it first (of compressed files only .gz is read)")
    if kind not in READERS or (is_zipped and kind not in GZIPPED):
        raise InputError(f'{path}: the ending "{kind}{".gz" * is_zipped}" is not one that can be '
                         f"prepared; give .txt, .jsonl, .json, .csv, .tsv (also with .gz), .parquet or .bin")
    try:
        with open(path, "rb") as file:
            head = file.read(2)
    except OSError as error:
        raise InputError(f"{path}: cannot be opened ({error.strerror})") from None
    if not head:
        raise InputError(f"{path}: is empty; give something to train on")
    if kind in GZIPPED and (head == GZIP_MAGIC) != is_zipped:
        raise InputError(f"{path}: is not compressed, though it is named .gz; take that off its name"
                         if is_zipped else
                         f"{path}: is compressed by gzip; name it {os.path.basename(path)}.gz")


def _undecodable(path):
    with _opened(path) as (file, _):
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return InputError(f"{path}:{number}: is not UTF-8 ({error.reason}); convert it")
    return InputError(f"{path}: is not UTF-8; convert it")


@contextlib.contextmanager
def _opened(path):
    """The file's bytes, and the file that they are read from, whose place says how far it is."""
    with open(path, "rb") as raw:
        if not _endings(path)[1]:
            yield raw, raw
            return
        with gzip.GzipFile(fileobj=raw) as file:
            yield io.BufferedReader(file), raw


def chunks(path, settings):
    """The chunks of a file, in order."""
    with _opened(path) as (file, raw):
        before = 0
        try:
            for chunk in READERS[kind_of(path)](path, file, settings):
                at = before if raw.closed else raw.tell()
                chunk.size, before = at - before, at
                yield chunk
        except UnicodeDecodeError:
            raise _undecodable(path) from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{path}: is not a whole .gz file ({error}); copy it again") from None
