"""What became of the records: counted as they are encoded, and said at the end."""
from collections import Counter

from common.errors import InputError
from prepare import chats

REASONS = 12  # for which records are skipped, that are named
PLACES = 5  # of records skipped for one reason, that are named
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
KEYS_SHOWN = 12


class Fault:
    """Why records are skipped: how many, and where the first of them are."""

    def __init__(self):
        self.count, self.places = 0, []

    def add(self, count, places):
        self.count += count
        self.places += places[:PLACES - len(self.places)]

    def text(self, reason):
        first, *also = self.places
        if self.count > PLACES:
            also.append(f"{self.count - PLACES:,} more")
        return f"{first}: {reason}" + (f" (also {', '.join(also)})" if also else "")


class Summary:
    def __init__(self):
        self.records = self.empty = self.weightless = self.unlearned = self.bad = 0
        self.divided = self.longest = 0
        self.completions = self.glued = 0  # prompts with completions; those with nothing between
        self.conversations, self.samples = Counter(), Counter()  # by how what is learned was found
        self.ends = Counter()  # of answers, by (the token's name or None, whether it is learned)
        self.texts, self.stops, self.stopping = set(), set(), []  # of `ends`, as judge_ends has them
        self.date = None  # that the chat template wrote
        self.faults = {}  # {reason: Fault} of bad records
        self.ignored = Counter()
        self.fields, self.found = {}, set()  # {name of a form's key: the key that is meant}; those of records
        self.longer = Counter()  # documents by the lengths that they exceed

    def add_fields(self, record, fields):
        """Notes which of the keys that `fields` names a record has."""
        if isinstance(record, dict):
            self.found.update(key for key in fields.values() if key in record)

    def add_bad(self, place, reason):
        self.records += 1
        self.bad += 1
        self._add_fault(reason, 1, [place])

    def _add_fault(self, reason, count, places):
        if reason in self.faults or len(self.faults) < REASONS:
            self.faults.setdefault(reason, Fault()).add(count, places)

    def add_record(self, documents, ignored, ends):
        """`documents` as records.parse has them. `ends` finds names of special tokens; None if all is
        learned."""
        self.records += 1
        self.weightless += documents is None
        self.empty += documents == []
        self.ignored.update(ignored)
        if documents and documents[0].whole:
            self.conversations[documents[0].how] += 1
            self.samples[documents[0].how] += len(documents)
        if documents and documents[0].apart:
            self.completions += 1
            self.glued += documents[0].is_glued()
        if documents and documents[0].whole:
            for document in documents if ends else ():
                self.ends.update(chats.ends_of(document.parts, ends))

    def add_ignored(self, keys, count):
        """Keys of `count` records that were not looked at."""
        for key in keys:
            self.ignored[key] += count

    def keeps(self, mask):
        """Whether a document with these digits is written: not if nothing of it is learned."""
        if b"1" not in mask:
            self.unlearned += 1
            return False
        self.measure(len(mask))
        return True

    def measure(self, tokens):
        """A document of so many tokens is written."""
        self.longest = max(self.longest, tokens)
        self.longer.update(length for length in LENGTHS if tokens > length)

    def add(self, other):
        for name in ("records", "empty", "weightless", "unlearned", "bad", "divided", "completions", "glued"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.longest = max(self.longest, other.longest)
        for reason, fault in other.faults.items():
            self._add_fault(reason, fault.count, fault.places)
        self.found |= other.found
        for name in ("ignored", "longer", "conversations", "samples", "ends"):
            getattr(self, name).update(getattr(other, name))

    def nothing(self, path):
        """The error for inputs of which nothing can be learned."""
        if self.faults:
            reason, fault = next(iter(self.faults.items()))
            more = ("", "; so is 1 further record")[self.bad - 1] if self.bad < 3 else (
                f"; so are {self.bad - 1:,} further records")
            return InputError(f"{fault.places[0]}: {reason}{more}")
        unlearned = self.unlearned or self.weightless
        what = "a record of which something is learned" if unlearned else "a record with text"
        return InputError(f"{path}: has no {what.removeprefix('a ')}; give something to train on")

    def judge_ends(self, encoder):
        """Which ends of answers are text of several tokens, and at which generation stops."""
        names = {name for name, learned in self.ends if name and learned}
        self.texts = {name for name in names if encoder.id_of(name) is None}
        self.stops = {name for name in names if encoder.id_of(name) in encoder.stops}
        self.stopping = [encoder.text([token]) for token in encoder.stops]

    def _endless(self):
        """A line for answers of which no end is one at which generation stops."""
        if not self.stopping or self.stops or not any(name and learned for name, learned in self.ends):
            return
        stops, answers = " and ".join(self.stopping), sum(self.ends.values())
        for (name, learned), count in self.ends.items():
            if not name or not learned:
                continue
            if name in self.texts:
                what = "text of several tokens"
                remedy = "give it there as a stop string, or take a tokenizer that has it"
            else:
                what = "no token that ends a text"
                remedy = "add it to eos_token_id in the model's generation_config.json"
            yield (f"{name}, which ends {count:,} of {answers:,} answers, is {what} to this model: "
                   f"Transformers' generate stops at {stops} alone and runs on behind an answer; {remedy}")

    def warnings(self):
        """A line for each bad record that is named, and for what would teach something else than is meant."""
        yield from (f"skipped: {fault.text(reason)}" for reason, fault in self.faults.items())
        others = self.bad - sum(fault.count for fault in self.faults.values())
        if others:
            yield f"skipped: {others:,} more for other reasons"
        for name, key in self.fields.items():
            if key not in self.found:
                yield (f'--fields {name}={key}: none of the {self.records:,} records has a key "{key}"; name '
                       "the one that is meant, or leave it out")
        answers = sum(self.ends.values())
        for (name, learned), count in self.ends.items():
            if name and not learned:
                yield (f"{name}, the token that ends an answer, is not learned in {count:,} of {answers:,} "
                       "answers, so a model would not learn to stop there; let the template's "
                       "{% generation %} marks reach behind it, by --chat-template FILE")
            elif not learned:
                yield (f"no special token ends {count:,} of {answers:,} answers, so a model would not learn "
                       "to stop there; give a chat template that writes one, by --chat-template FILE")
        yield from self._endless()

    def notes(self):
        """Lines for what a preview does not show."""
        if self.weightless:
            yield f"left out (weight 0): {self.weightless:,} record{'s' * (self.weightless > 1)}"
        yield from self.unused()

    def unused(self):
        """A line for the keys that are not used, if there are any."""
        if self.ignored:
            shown = sorted(self.ignored.items(), key=lambda item: (-item[1], item[0]))[:KEYS_SHOWN]
            keys = ", ".join(f"{key} in {count:,}" for key, count in shown)
            more = len(self.ignored) - KEYS_SHOWN
            yield (f"ignored: {keys} record{'s' * (shown[-1][1] != 1)}"
                   + (f", and {more} more key{'s' * (more > 1)}" if more > 0 else ""))

    def lines(self):
        if self.records:
            yield f"records: {self.records:,} read, {self._losses()}"
        if self.longest:
            longer = [(length, self.longer[length]) for length in LENGTHS if self.longer[length]]
            over = ", ".join(f"{length:,}: {count:,}" for length, count in longer)
            yield f"longest: {self.longest:,} tokens" + (f"; documents longer than {over}" if over else "")
        if self.conversations:
            yield f"conversations: {sum(self.conversations.values()):,}, learned {self._methods()}"
        if self.ends:
            learned = sum(count for (_, learned), count in self.ends.items() if learned)
            yield f"ends of answers: {learned:,} learned of {sum(self.ends.values()):,}"
        if self.date:
            yield (f"date: the chat template may write today's, {self.date:%Y-%m-%d}; SOURCE_DATE_EPOCH sets "
                   "another")
        yield from self.unused()
        if self.divided:
            yield (f"records whose prompt and completion would have a token in common: {self.divided:,}; "
                   "the two are encoded apart")
        if 2 * self.glued > self.completions:
            yield (f"prompts with no space before their completion: {self.glued:,}; the two are joined as "
                   "they are (--preview shows it)")

    def _methods(self):
        """How what is learned of conversations was found, the most frequent way first."""
        ways = []
        for how, count in sorted(self.conversations.items(), key=lambda item: (-item[1], item[0])):
            many = f"{count:,} " if len(self.conversations) > 1 else ""
            apart = f" ({self.samples[how]:,} samples)" if self.samples[how] > count else ""
            ways.append(f"{many}{how}{apart}")
        return ", ".join(ways)

    def _losses(self):
        losses = [f"{count:,} {what}" for count, what in
                  ((self.empty, "left out (no text)"), (self.weightless, "left out (weight 0)"),
                   (self.unlearned, "left out (nothing is learned)"),
                   (self.bad, "skipped (bad)")) if count]
        return ", ".join(losses) or "all used"
