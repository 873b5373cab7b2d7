"""From input files to one file of tokens: chunks are encoded by several processes and written in order."""
import contextlib
import multiprocessing
import os
import signal
import sys
import time
from array import array
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from common.errors import Failure, InputError, OptionError
from prepare import encoders, inputs, records
from prepare.token_file import TYPECODES, Writer, little_endian

VOCABULARY_MAX = 1 << 31


@dataclass
class Settings:
    """What every process must know."""
    tokenizer: str = None  # path; None: bytes
    copy: bool = False  # only .bin and no tokenizer: tokens as they are
    packing: bool = True
    mask_prompt: bool = True
    special_tokens: bool = True
    chat_template: str = "auto"
    bos: str = None
    eos: str = None
    hash: int = None  # of the tokenizer, once known
    token_bytes: int = 0

    def _id(self, option, value, default, tokenizer):
        if value is None:
            return default
        if value == "none":
            return None
        if value.isdecimal():
            return int(value)
        token = tokenizer.token_to_id(value) if tokenizer else None
        if token is None:
            raise OptionError(f'{option} "{value}": is not a token of the vocabulary; give a token, a number '
                              "or none")
        return token

    def begin_id(self, default, tokenizer):
        return self._id("--bos", self.bos, default, tokenizer)

    def end_id(self, default, tokenizer):
        return self._id("--eos", self.eos, default, tokenizer)

    @property
    def no_end(self):
        return self.eos == "none"


class Encoded:
    """A chunk as it goes into the file."""

    def __init__(self, tokens, mask, starts, left_out, greatest, divided=0):
        self.tokens, self.mask, self.starts = tokens, mask, starts
        self.left_out, self.greatest, self.divided = left_out, greatest, divided


class Worker:
    """Encodes chunks; one in each process."""

    def __init__(self, settings):
        self.settings = settings
        self.encoder = None
        if not settings.copy:
            self.encoder = encoders.Pretrained(settings) if settings.tokenizer else encoders.Bytes(settings)
        self.template = self.encoder.template if self.encoder else None
        self.mask_prompt = settings.mask_prompt

    def encode(self, chunk):
        return getattr(self, "_" + chunk.kind)(chunk)

    def _piece(self, chunk):
        ids = self.encoder.piece(chunk.data, (chunk.path, chunk.line), chunk.first, chunk.last)
        begins = chunk.first and bool(ids)
        mask = b"0" + b"1" * (len(ids) - 1) if begins else b"1" * len(ids)
        return Encoded(self._bytes(ids), mask, [0] if begins else [], 0, 0)

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
        return Encoded(self._bytes(ids), mask, [0] if chunk.first else [], 0, greatest)

    def _lines(self, chunk):
        return self._records(self._parsed_lines(chunk))

    def _parsed_lines(self, chunk):
        for number, line in enumerate(chunk.data.split(b"\n"), chunk.line):
            place = f"{chunk.path}:{number}"
            line = line.strip(b" \t\r")
            if not line:
                continue
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(f"{place}: is not UTF-8 ({error.reason}); convert it") from None
            yield records.parse(records.decode(text, place), place, self)

    def _objects(self, chunk):
        return self._records(records.parse(value, f"{chunk.path}:{line}", self) for line, value in chunk.data)

    def _records(self, parsed):
        documents = list(parsed)
        ids, masks, starts = array(TYPECODES[self.settings.token_bytes]), [], []
        left_out, divided = documents.count(None), self.encoder.divided
        for tokens, mask in self.encoder.documents(document for document in documents if document):
            if tokens:
                starts.append(len(ids))
                ids.extend(tokens)
                masks.append(mask)
            else:
                left_out += 1
        return Encoded(self._bytes(ids), b"".join(masks), starts, left_out, 0, self.encoder.divided - divided)

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
    """A pool whose start is cut short by an exception cannot be ended; its threads and processes inherit
    the mask."""
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
    """Writes `out`; returns the writer, the numbers of records left out and of those whose parts are encoded
    apart, and the vocabulary."""
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
    writer, progress = Writer(out, settings.token_bytes), Progress(total)
    left_out = greatest = divided = 0
    try:
        chunks = (chunk for path in paths for chunk in inputs.chunks(path))
        with contextlib.closing(_in_order(chunks, processes, worker, settings)) as results:
            for chunk, result in results:
                writer.add(result.tokens, result.mask, result.starts)
                left_out += result.left_out
                divided += result.divided
                greatest = max(greatest, result.greatest)
                progress.add(chunk.size, len(result.mask))
        if not writer.tokens:
            raise InputError(f"{paths[0]}: has no record with text; give something to train on")
        vocabulary = encoder.vocabulary if encoder else greatest + 1
        first, last = (encoder.begin, encoder.end) if encoder else (None, None)
        writer.finish({"vocabulary": vocabulary, "packed": settings.packing,
                       "bytes": bool(encoder) and encoder.is_bytes,
                       "tokenizer_hash": encoder.tokenizer_hash if encoder else 0,
                       "first": -1 if first is None else first, "last": -1 if last is None else last})
    except OSError as error:
        raise InputError(f"{error.filename or out}: {error.strerror}; nothing was written") from None
    finally:
        progress.clear()
        writer.abandon()
    return writer, left_out, divided, vocabulary
