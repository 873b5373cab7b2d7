"""The first records as they will be learned, for a person to look at."""
import itertools
import sys

from prepare import inputs
from prepare.pipeline import Worker
from prepare.summary import Summary

LEARNED, OTHER, PLAIN = "\033[32m", "\033[2m", "\033[0m"  # green, dim


def _spans(ids, mask):
    """(tokens, whether they are learned), of tokens that follow each other."""
    at = 0
    for digit, group in itertools.groupby(mask):
        count = len(list(group))
        yield ids[at:at + count], digit == ord("1")
        at += count


def _shown(text, learned, coloured):
    if coloured:
        return (LEARNED if learned else OTHER) + text + PLAIN
    return f"{{+{text}+}}" if learned else text


def _documents(paths, settings, worker, summary):
    """(ids, mask) of each document; a text's are those of its first piece."""
    for path in paths:
        for chunk in inputs.chunks(path, settings):
            if chunk.kind == "piece":
                ids = worker.encoder.piece(chunk.data, (path, chunk.line), chunk.first, chunk.last)
                yield ids, b"0" + b"1" * (len(ids) - 1)
                break
            numbered, record_of = worker.numbered(chunk)
            for document in worker.parsed(chunk, numbered, record_of, summary):
                yield from worker.encoder.documents([document])


def preview(paths, settings, count, out=sys.stdout):
    """Prints the first `count` documents: on a terminal what is learned is green, elsewhere {+marked+}."""
    settings.token_bytes = 4
    worker, summary = Worker(settings), Summary()
    summary.fields = settings.fields
    coloured = out.isatty()
    shown = 0
    for ids, mask in itertools.islice(_documents(paths, settings, worker, summary), count):
        shown += 1
        learned = mask.count(b"1")
        out.write(f"--- document {shown}: {len(ids):,} tokens, {learned:,} learned"
                  + ("\n" if learned else ", so it is left out\n"))
        for span, counts in _spans(ids, mask):
            out.write(_shown(worker.encoder.text(span), counts, coloured))
        out.write("\n")
    if not shown:
        raise summary.nothing(paths[0])
    return summary
