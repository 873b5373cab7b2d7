"""Documents as tokens with one digit each: 1 if the loss counts the token, else 0.

The first token of a document has nothing of it before, and is never counted.
"""
import os
import re

from common import json_file
from common.errors import InputError, OptionError
from prepare import chats
from prepare.forms import BadRecord
from prepare.token_file import xxh64

END_OF_BYTES = 0


class Bytes:
    """Every byte is a token; a record ends with byte 0, and a .txt with nothing."""
    tokenizer_hash, is_bytes, vocabulary = 0, True, 256
    divided = 0  # no byte lies in two parts
    hide = None  # there are no special tokens

    def __init__(self, settings):
        self.templates = chats.templates_of(settings, None, None)
        self.ends = re.compile(chats.ANY_NAME)
        self.begin = settings.begin_id(None, self.vocabulary)
        self.end = settings.end_id(END_OF_BYTES, self.vocabulary)
        self.end_of_text = settings.end_id(None, self.vocabulary)
        self.stops = [] if self.end is None else [self.end]

    def documents(self, documents):
        for document in documents:
            ids, mask = [], []
            if self.begin is not None and not document.whole:
                ids, mask = [self.begin], [b"0"]
            for text, counts in document.parts:
                added = text.encode("utf-8") if text is not None else self._end()
                ids.extend(added)
                mask.append((b"1" if counts else b"0") * len(added))
            yield ids, b"0" + b"".join(mask)[1:]

    def _end(self):
        return b"" if self.end is None else bytes([self.end])

    def id_of(self, name):
        return None

    def text(self, ids):
        return bytes(ids).decode("utf-8", errors="replace").replace("\0", "\\0")

    def piece(self, data, place, first, last):
        ids = list(data.removeprefix(b"\xef\xbb\xbf") if first else data)
        if first and self.begin is not None:
            ids.insert(0, self.begin)
        if last and self.end_of_text is not None:
            ids.append(self.end_of_text)
        return ids


class Pretrained:
    """A tokenizer.json, with what stands beside it about its special tokens and chats."""
    is_bytes = False
    divided = 0  # documents whose parts a token would have joined

    def __init__(self, settings):
        import tokenizers
        self.path = settings.tokenizer
        with open(self.path, "rb") as file:
            data = file.read()
        self.tokenizer_hash = xxh64(data) if settings.hash is None else settings.hash
        try:
            self.tokenizer = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
        except Exception as error:  # the package raises nothing narrower
            raise InputError(f"{self.path}: is not a readable tokenizer.json ({error})") from None
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.special_tokens = settings.special_tokens
        beside = _Beside(self.path)
        beside.add_tokens(self.tokenizer)
        self.vocabulary = 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values())
        self.begin = settings.begin_id(self._own_begin(), self.vocabulary, self.tokenizer)
        self.end = settings.end_id(beside.id_of("eos", self.tokenizer), self.vocabulary, self.tokenizer)
        if self.end is None and settings.eos != "none":
            raise OptionError(f"{self.path}: nothing beside it says which token ends a text; name it with "
                              "--eos TOKEN, or --eos none")
        if self.end is not None and self.end >= self.vocabulary:
            raise OptionError(f"{self.path}: the files beside it end a text with token {self.end}, but its "
                              f"vocabulary is {self.vocabulary}; name the right one with --eos TOKEN")
        self.stops = sorted({self.end} - {None} | beside.stops())  # at which what generates ends a text
        self.templates = chats.templates_of(settings, beside, self.path)
        added = self.tokenizer.get_added_tokens_decoder().values()
        special = [token.content for token in added if token.special]
        self.special_names = sorted(special, key=len, reverse=True)
        self.ends = re.compile("|".join(map(re.escape, self.special_names)) or chats.ANY_NAME)
        self.break_ids = self._ids("\n")
        self.needs_context = self._ids("a\nb") != self._ids("a\n") + self._ids("b")
        # Whether text behind a special token is encoded as if it began there.
        self.begins_anew = all(self._ids(name + "a")[1:] == self._ids("a") for name in self.special_names[:1])

    def hide(self, text, place):
        """`text` with characters in place of special tokens' names, where those are ordinary text."""
        if self.special_tokens:
            return text
        if any(chats.HIDDEN <= ord(character) < chats.HIDDEN + len(self.special_names) for character in text):
            raise BadRecord(f"{place}: has private characters from U+F0000 on, which --special-tokens off "
                            "needs; remove them")
        for number, name in enumerate(self.special_names):
            text = text.replace(name, chr(chats.HIDDEN + number))
        return text

    def text(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def id_of(self, name):
        """The token of this name, or None if it is text of several."""
        return self.tokenizer.token_to_id(name)

    def _ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _own_begin(self):
        """The token that the tokenizer puts before every text. Transformers asks nothing else: add_bos_token
        of tokenizer_config.json is for folders without a tokenizer.json."""
        plain, full = self._ids("a"), self.tokenizer.encode("a").ids
        return full[0] if len(full) > len(plain) and full[:len(plain)] != plain else None

    def _encoded(self, runs_of, documents):
        """The runs' encodings, in order. A chat template writes special tokens, whatever text may hold."""
        encodings = {}
        for whole in (False, True):
            texts = [(index, text) for index, runs in enumerate(runs_of) if documents[index].whole == whole
                     for text, _, _ in runs]
            if texts:
                self.tokenizer.encode_special_tokens = not (whole or self.special_tokens)
                batch = self.tokenizer.encode_batch([text for _, text in texts], add_special_tokens=False)
                for (index, _), encoding in zip(texts, batch):
                    encodings.setdefault(index, []).append(encoding)
        return encodings

    def documents(self, documents):
        """Tokens and digits of each document. Text between two ends of text is encoded as one."""
        documents = list(documents)
        runs_of = [list(_runs(document)) for document in documents]
        encodings = self._encoded(runs_of, documents)
        for index, document in enumerate(documents):
            ids, mask = [], []
            if self.begin is not None and not document.whole:
                ids, mask = [self.begin], ["0"]
            for (text, spans, end_counts), encoding in zip(runs_of[index], encodings.get(index, [])):
                if document.hides:
                    added, digits = self._revealed(text, spans)
                elif document.apart and _joins(encoding, spans):
                    added, digits = self._apart(text, spans)
                    self.divided += 1
                else:
                    added, digits = encoding.ids, _digits(encoding, spans)
                ids += added
                mask.append(digits)
                if end_counts is not None and self.end is not None:
                    ids.append(self.end)
                    mask.append("1" if end_counts else "0")
            yield ids, ("0" + "".join(mask)[1:]).encode() if ids else b""

    def _revealed(self, text, spans):
        """Text in which a template's special tokens are tokens and those that it was given are ordinary text:
        what lies between the former is encoded by itself, as they divide it anyway."""
        ids, digits, counts, at = [], [], [], 0
        for end, learned in spans:
            counts += [learned] * (end - len(counts))
        pattern = "|".join(map(re.escape, self.special_names))
        self.tokenizer.encode_special_tokens = True
        for piece in re.split(f"({pattern})", text):
            learned = counts[at:at + len(piece)]
            at += len(piece)
            if piece in self.special_names:
                ids.append(self.tokenizer.token_to_id(piece))
                digits.append("1" if learned[0] else "0")
            elif piece:
                names = [self._shown(character) for character in piece]
                flags = [flag for name, flag in zip(names, learned) for _ in name]
                added, offsets = self._segment("".join(names), at > len(piece))
                ids += added
                digits += ["1" if any(flags[max(begin, 0):end]) else "0" for begin, end in offsets]
        return ids, "".join(digits)

    def _segment(self, text, behind):
        """Tokens and offsets of text that begins a document or stands behind a special token."""
        if behind and not self.begins_anew:
            encoding = self.tokenizer.encode("\n" + text, add_special_tokens=False)
            first = len(self.break_ids)
            if encoding.ids[:first] == self.break_ids:
                return encoding.ids[first:], [(begin - 1, end - 1) for begin, end in encoding.offsets[first:]]
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def _shown(self, character):
        number = ord(character) - chats.HIDDEN
        return self.special_names[number] if 0 <= number < len(self.special_names) else character

    def _behind(self, text):
        """The tokens of a text that another one stands before, as near as the tokenizer can. Some mark the
        beginning of what they are given; it must be seen not to be one."""
        if self.needs_context:
            joined, known = self._ids("\n" + text), self.break_ids
            if joined[:len(known)] == known:
                return joined[len(known):]
        return self._ids(text)

    def _apart(self, text, spans):
        """Each span's tokens by themselves, as a prompt's are where a model is to complete it."""
        self.tokenizer.encode_special_tokens = not self.special_tokens
        ids, digits, begin = [], "", 0
        for end, counts in spans:
            part = text[begin:end]
            added = self._behind(part) if begin else self._ids(part)
            ids, digits, begin = ids + added, digits + ("1" if counts else "0") * len(added), end
        return ids, digits

    def piece(self, data, place, first, last):
        """A piece of a longer text, as near as its tokenizer can to how it stands there."""
        path, line = place
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line += data.count(b"\n", 0, error.start)
            raise InputError(f"{path}:{line}: is not UTF-8 ({error.reason}); convert it") from None
        text = text.removeprefix("\ufeff") if first else text
        self.tokenizer.encode_special_tokens = not self.special_tokens
        ids = self._ids(text) if first else self._behind(text)
        if first and self.begin is not None:
            ids.insert(0, self.begin)
        if last and self.end is not None:
            ids.append(self.end)
        return ids


def _runs(document):
    """(text, [(end, counts)..] of its characters, whether the end behind it counts or None) of a document."""
    text, spans = [], []
    size = 0
    for part, counts in document.parts:
        if part is None:
            yield "".join(text), spans, counts
            text, spans, size = [], [], 0
        elif part:
            size += len(part)
            text.append(part)
            spans.append((size, counts))
    if text:
        yield "".join(text), spans, None


def _joins(encoding, spans):
    """Whether a token has characters of two spans that are learned differently."""
    return any(begin < end < token_end and counts != next_counts
               for (end, counts), (_, next_counts) in zip(spans, spans[1:])
               for begin, token_end in encoding.offsets)


def _digits(encoding, spans):
    """A token counts if one of its characters does: an answer's first word may begin with the prompt's last
    space, and must be learned."""
    count = len(encoding.ids)
    if len(spans) <= 1:
        return ("1" if spans and spans[0][1] else "0") * count
    digits, at = [], 0
    for begin, end in encoding.offsets:
        while at + 1 < len(spans) and begin >= spans[at][0]:
            at += 1
        last, counts = at, spans[at][1]
        while last + 1 < len(spans) and end > spans[last][0]:
            last += 1
            counts |= spans[last][1]
        digits.append("1" if counts else "0")
    return "".join(digits)


def _added(value):
    """The token of a text, or of an object with flags."""
    from tokenizers import AddedToken
    flags = value if isinstance(value, dict) else {"content": value, "special": True}
    known = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(flags["content"], **{flag: flags[flag] for flag in known if flag in flags})


class _Beside:
    """The files that lie beside a tokenizer.json."""

    def __init__(self, path):
        self.folder = os.path.dirname(path)
        self.config = self._read("tokenizer_config.json")
        self.others = [self._read(name) for name in ("generation_config.json", "config.json")]
        self.special = self._read("special_tokens_map.json")

    def _read(self, name):
        value = json_file.read(os.path.join(self.folder, name))
        return value if isinstance(value, dict) else {}

    def _named(self):
        """The special tokens that these files name: text, or an object of its flags."""
        config = self.config if "added_tokens_decoder" in self.config else self.config | self.special
        yield from (config.get(f"{kind}_token") for kind in chats.SPECIAL)
        more = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
        yield from more.values() if isinstance(more, dict) else more

    def add_tokens(self, tokenizer):
        """Gives a tokenizer the tokens that only these files have, or have with other flags, as Transformers
        does: they follow on its own."""
        known = {repr(token): token.content for token in tokenizer.get_added_tokens_decoder().values()}
        listed = self.config.get("added_tokens_decoder") or {}
        new = [_added(listed[number]) for number in sorted(listed, key=int)]
        new = [token for token in new if repr(token) not in known]
        names = {*known.values(), *(token.content for token in new)}
        for value in filter(None, self._named()):
            token = _added(value)
            if token.content not in names:
                names.add(token.content)
                new.append(token)
        tokenizer.add_tokens(new)

    def text_of(self, which):
        """The token "bos" or "eos" as text, or None."""
        value = self.config.get(f"{which}_token") or self.special.get(f"{which}_token")
        return value.get("content") if isinstance(value, dict) else value

    def id_of(self, which, tokenizer):
        text = self.text_of(which)
        if text is not None and tokenizer.token_to_id(text) is not None:
            return tokenizer.token_to_id(text)
        for config in self.others:
            value = config.get(f"{which}_token_id")
            if isinstance(value, list) and value:
                value = value[0]
            if isinstance(value, int):
                return value
        return None

    def stops(self):
        """The tokens at which Transformers' generate ends a text: where there is a generation_config.json,
        its own alone, also if it has none."""
        has_own = os.path.exists(os.path.join(self.folder, "generation_config.json"))
        value = self.others[0 if has_own else 1].get("eos_token_id")
        tokens = value if isinstance(value, list) else [value]
        return {token for token in tokens if isinstance(token, int)}

    def chat_templates(self):
        """{name: source} of those that are used: "default", and "tool_use" for conversations with tools."""
        value = self.config.get("chat_template")
        named = {"default": value}
        if isinstance(value, list):
            named = {item.get("name"): item.get("template") for item in value}
        for name, path in (("default", "chat_template.jinja"),
                           ("tool_use", "additional_chat_templates/tool_use.jinja")):
            path = os.path.join(self.folder, path)
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    named[name] = file.read()
        return {name: named[name] for name in ("default", "tool_use") if named.get(name)}


def templates_beside(folder):
    """{name: source} of the chat templates in a model's folder."""
    return _Beside(os.path.join(folder, "tokenizer.json")).chat_templates()
