"""From input files to one file of tokens: chunks are encoded by several processes and written in order."""
import contextlib
import datetime
import multiprocessing
import os
import signal
import sys
import time
from array import array
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

from common.errors import Failure, InputError, OptionError
from prepare import encoders, inputs, records
from prepare.forms import BadRecord
from prepare.summary import Summary
from prepare.token_file import TYPECODES, Writer, little_endian

VOCABULARY_MAX = 1 << 31
TEXTS = ("piece", "tokens")  # kinds of chunks that are parts of one document


@dataclass
class Settings:
    """What every process must know."""
    tokenizer: str = None  # path; None: bytes
    copy: bool = False  # only .bin and no tokenizer: tokens as they are
    mask_prompt: bool = True
    special_tokens: bool = True
    chat_template: str = None  # its source; None: the tokenizer's own
    now: datetime.datetime = None  # for templates that write the date
    fields: dict = field(default_factory=dict)  # {name of a form's key: the key that holds it}
    strict: bool = False  # a bad record ends it
    bos: str = None
    eos: str = None
    hash: int = None  # of the tokenizer, once known
    token_bytes: int = 0

    def _id(self, option, value, default, vocabulary, tokenizer):
        if value is None:
            return default
        if value == "none":
            return None
        token = int(value) if value.isdecimal() else tokenizer.token_to_id(value) if tokenizer else None
        if token is not None and token < vocabulary:
            return token
        if not tokenizer:
            raise OptionError(f"{option} {value}: is not a byte; give 0 to 255, or none")
        raise OptionError(f"{option} {value}: is not a token of the vocabulary of {vocabulary}; give a "
                          "token, a number below that, or none")

    def begin_id(self, default, vocabulary, tokenizer=None):
        return self._id("--bos", self.bos, default, vocabulary, tokenizer)

    def end_id(self, default, vocabulary, tokenizer=None):
        return self._id("--eos", self.eos, default, vocabulary, tokenizer)


@dataclass
class Encoded:
    """A chunk as it goes into the file."""
    tokens: bytes
    mask: bytes
    starts: list
    summary: Summary
    joined: bytes = None  # a digit for each document: 1 if it is of the record of the one before
    greatest: int = 0


class Worker:
    """Encodes chunks; one in each process."""

    def __init__(self, settings):
        self.settings = settings
        self.encoder = None
        if not settings.copy:
            self.encoder = encoders.Pretrained(settings) if settings.tokenizer else encoders.Bytes(settings)
        self.mask_prompt, self.fields = settings.mask_prompt, settings.fields
        self.hide = self.encoder.hide if settings.tokenizer and not settings.special_tokens else None

    def encode(self, chunk):
        encode = {"piece": self._piece, "tokens": self._tokens}
        return encode.get(chunk.kind, self._records)(chunk)

    def _piece(self, chunk):
        ids = self.encoder.piece(chunk.data, (chunk.path, chunk.line), chunk.first, chunk.last)
        begins = chunk.first and bool(ids)
        mask = b"0" + b"1" * (len(ids) - 1) if begins else b"1" * len(ids)
        return Encoded(self._bytes(ids), mask, [0] if begins else [], Summary())

    def _tokens(self, chunk):
        ids = array(TYPECODES[chunk.token_bytes], chunk.data)
        if sys.byteorder == "big":
            ids.byteswap()
        greatest = max(ids)
        limit = self.encoder.vocabulary if self.encoder else VOCABULARY_MAX - 1
        if greatest >= limit:
            raise InputError(f"{chunk.path}: has a token {greatest}, but the vocabulary is {limit}; give the "
                             "tokenizer that made it")
        mask = b"0" + b"1" * (len(ids) - 1) if chunk.first else b"1" * len(ids)
        return Encoded(self._bytes(ids), mask, [0] if chunk.first else [], Summary(), greatest=greatest)

    def numbered(self, chunk):
        """((line, item) of a chunk, and what makes an item the record)."""
        if chunk.kind == "lines":
            lines = enumerate(chunk.data.split(b"\n"), chunk.line)
            return ((number, line) for number, line in lines if line.strip(b" \t\r")), self._line
        return chunk.data, self._object

    def _object(self, record, place):
        if isinstance(record, BadRecord):
            raise record
        return record

    def _line(self, line, place):
        try:
            return records.decode(line.decode("utf-8").strip(" \t\r"), place)
        except UnicodeDecodeError as error:
            raise BadRecord(f"{place}: is not UTF-8 ({error.reason}); convert it") from None

    def parsed(self, chunk, numbered, record_of, summary, numbers=None):
        """The documents of each record that can be used; of each its record's number into `numbers`."""
        for number, item in numbered:
            place = f"{chunk.path}:{number}"
            try:
                record = record_of(item, place)
                summary.add_fields(record, self.fields)
                documents, ignored = records.parse(record, place, self)
            except BadRecord as error:
                if self.settings.strict:
                    raise
                summary.add_bad(place, str(error).removeprefix(f"{place}: "))
                continue
            summary.add_record(documents, ignored, self.encoder.ends if self.mask_prompt else None)
            if documents is None:
                continue
            if numbers is not None:
                numbers.extend([summary.records] * len(documents))
            yield from documents

    def _records(self, chunk):
        numbered, record_of = self.numbered(chunk)
        summary, divided = Summary(), self.encoder.divided
        summary.add_ignored(chunk.ignored, len(chunk.data))  # of a table's rows
        ids, masks, starts = array(TYPECODES[self.settings.token_bytes]), [], []
        numbers, joined, last = [], [], None  # of records
        documents = self.encoder.documents(self.parsed(chunk, numbered, record_of, summary, numbers))
        for index, (tokens, mask) in enumerate(documents):
            if summary.keeps(mask):
                starts.append(len(ids))
                ids.extend(tokens)
                masks.append(mask)
                joined.append(b"1" if numbers[index] == last else b"0")
                last = numbers[index]
        summary.divided = self.encoder.divided - divided
        return Encoded(self._bytes(ids), b"".join(masks), starts, summary, b"".join(joined))

    def _bytes(self, ids):
        return little_endian(ids, self.settings.token_bytes)


ENDING = {signal.SIGINT, signal.SIGTERM}
_worker = None  # of this process


def _start_worker(settings):
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process stops the others
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    _worker = Worker(settings)


def _encode(chunk):
    return _worker.encode(chunk)


@contextlib.contextmanager
def _signals_wait():
    """A pool whose start is cut short by an exception cannot be ended, nor a file that was opened be removed.
    Threads and processes started here inherit the mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _in_order(chunks, processes, worker, settings):
    """(chunk, its result) in the chunks' order, with a bounded number in progress."""
    if processes == 1:
        for chunk in chunks:
            yield chunk, worker.encode(chunk)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _start_worker, (settings,)) as pool:
        under_way, more, fault = deque(), True, None
        try:
            while more or under_way:
                try:
                    chunk = next(chunks, None) if more else None
                except Failure as error:  # earlier chunks may have their own fault, to be reported first
                    chunk, fault = None, error
                more = chunk is not None
                if more:
                    with _signals_wait():  # the first ones start the processes
                        under_way.append((chunk, pool.submit(_encode, chunk)))
                if under_way and (not more or len(under_way) > 2 * processes):
                    chunk, future = under_way.popleft()
                    yield chunk, future.result()
            if fault:
                raise fault
        except BrokenProcessPool:
            raise Failure("a process died, perhaps out of memory; give fewer --procs") from None
        finally:
            for _, future in under_way:
                future.cancel()


class Progress:
    """A bar on a terminal, nothing elsewhere."""

    def __init__(self, total):
        self.total, self.done, self.tokens = max(total, 1), 0, 0
        self.began = self.shown = time.monotonic()
        self.visible = sys.stderr.isatty()

    def add(self, size, tokens):
        self.done += size
        self.tokens += tokens
        now = time.monotonic()
        if self.visible and now - self.shown > 0.2:
            self.shown = now
            self._show(now - self.began)

    def _show(self, seconds):
        part = min(self.done / self.total, 1)
        bar = ("#" * int(30 * part)).ljust(30)
        left = seconds * (1 - part) / part if part else 0
        sys.stderr.write(f"\r[{bar}] {100 * part:5.1f}%  {self.tokens / 1e6:.1f}M tokens  "
                         f"{self.done / 1e6 / seconds:.1f} MB/s  {left:.0f} s left \033[K")
        sys.stderr.flush()

    def clear(self):
        if self.visible:
            sys.stderr.write("\r\033[K")


def prepare(paths, out, settings, processes):
    """Writes `out`; returns the writer, the summary of the records, and the vocabulary."""
    total = sum(os.path.getsize(path) for path in paths)
    settings.token_bytes = 4
    worker = Worker(settings)
    encoder = worker.encoder
    if encoder:
        settings.hash = encoder.tokenizer_hash
        settings.token_bytes = 1 if encoder.is_bytes else 2 if encoder.vocabulary <= 1 << 16 else 4
    else:
        settings.token_bytes = max(inputs.token_layout(path)[1] for path in paths)
    processes = min(processes, 1 + total // inputs.CHUNK_BYTES)
    writer, progress, summary = None, Progress(total), Summary()
    greatest = text = 0  # the latter of tokens so far of a document that is several chunks
    try:
        with _signals_wait():
            writer = Writer(out, settings.token_bytes)
        chunks = (chunk for path in paths for chunk in inputs.chunks(path, settings))
        with contextlib.closing(_in_order(chunks, processes, worker, settings)) as results:
            for chunk, result in results:
                writer.add(result.tokens, result.mask, result.starts, result.joined)
                summary.add(result.summary)
                if chunk.kind not in TEXTS or chunk.first:
                    summary.measure(text)
                    text = 0
                if chunk.kind in TEXTS:
                    text += len(result.mask)
                greatest = max(greatest, result.greatest)
                progress.add(chunk.size, len(result.mask))
        summary.measure(text)
        if not writer.tokens:
            raise summary.nothing(paths[0])
        summary.fields = settings.fields
        if encoder and not encoder.is_bytes:
            summary.judge_ends(encoder)
        if summary.conversations and any(each.writes_the_date for each in encoder.templates.values()):
            summary.date = settings.now
        vocabulary = encoder.vocabulary if encoder else greatest + 1
        first, last = (encoder.begin, encoder.end) if encoder else (None, None)
        writer.finish({"vocabulary": vocabulary,
                       "bytes": bool(encoder) and encoder.is_bytes,
                       "tokenizer_hash": encoder.tokenizer_hash if encoder else 0,
                       "first": -1 if first is None else first, "last": -1 if last is None else last,
                       "template": settings.chat_template})
    except OSError as error:
        raise InputError(f"{error.filename or out}: {error.strerror}; nothing was written") from None
    finally:
        progress.clear()
        if writer:
            writer.abandon()
    return writer, summary, vocabulary
