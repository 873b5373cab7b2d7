"""What became of the records: counted as they are encoded, and said at the end."""
from collections import Counter

from common.errors import InputError

NAMED = 5  # bad records that are named, of each preparation
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
KEYS_SHOWN = 12


class Summary:
    def __init__(self):
        self.records = self.empty = self.unlearned = self.bad = self.divided = self.longest = 0
        self.faults = []  # messages of the first bad records
        self.ignored = Counter()
        self.longer = Counter()  # documents by the lengths that they exceed

    def add_bad(self, error):
        self.records += 1
        self.bad += 1
        if len(self.faults) < NAMED:
            self.faults.append(str(error))

    def add_record(self, documents, ignored):
        self.records += 1
        self.empty += not documents
        self.ignored.update(ignored)

    def add_ignored(self, keys, count):
        """Keys of `count` records that were not looked at."""
        for key in keys:
            self.ignored[key] += count

    def keeps(self, mask):
        """Whether a document with these digits is written: not if nothing of it is learned."""
        if b"1" not in mask:
            self.unlearned += 1
            return False
        self.longest = max(self.longest, len(mask))
        self.longer.update(length for length in LENGTHS if len(mask) > length)
        return True

    def add(self, other):
        for name in ("records", "empty", "unlearned", "bad", "divided"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.longest = max(self.longest, other.longest)
        self.faults += other.faults[:NAMED - len(self.faults)]
        self.ignored += other.ignored
        self.longer += other.longer

    def nothing(self, path):
        """The error for inputs of which nothing can be learned."""
        if self.faults:
            more = "" if self.bad == 1 else f"; so are {self.bad - 1:,} further records"
            return InputError(self.faults[0] + more)
        what = "a record of which something is learned" if self.unlearned else "a record with text"
        return InputError(f"{path}: has no {what.removeprefix('a ')}; give something to train on")

    def warnings(self):
        """A line for each bad record that is named."""
        yield from (f"skipped: {fault}" for fault in self.faults)
        if self.bad > len(self.faults):
            yield f"skipped: {self.bad - len(self.faults):,} more records"

    def lines(self):
        if self.records:
            yield f"records: {self.records:,} read, {self._losses()}"
        if self.longest:
            longer = [(length, self.longer[length]) for length in LENGTHS if self.longer[length]]
            over = ", ".join(f"{length:,}: {count:,}" for length, count in longer)
            yield f"longest: {self.longest:,} tokens" + (f"; documents longer than {over}" if over else "")
        if self.ignored:
            shown = ", ".join(f"{key} in {count:,}" for key, count in
                              sorted(self.ignored.items(), key=lambda item: (-item[1], item[0]))[:KEYS_SHOWN])
            more = len(self.ignored) - KEYS_SHOWN
            yield f"ignored: {shown} records" + (f", and {more} more keys" if more > 0 else "")
        if self.divided:
            yield (f"records whose prompt and completion would have a token in common: {self.divided:,}; "
                   "the two are encoded apart")

    def _losses(self):
        losses = [f"{count:,} {what}" for count, what in
                  ((self.empty, "left out (no text)"), (self.unlearned, "left out (nothing is learned)"),
                   (self.bad, "skipped (bad)")) if count]
        return ", ".join(losses) or "all used"
