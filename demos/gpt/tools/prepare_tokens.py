#!/usr/bin/env python3
"""Turns a text into the files of tokens that syncrun-gpt learns from.

usage: prepare_tokens.py TEXT OUT [--tokens bytes|bpe|gpt2] [--vocab-size N] [--merges FILE] [--held-out X]

TEXT is a file, plain or .gz, .bz2 or .xz. It may have any encoding that contains ASCII, such as UTF-8.

--tokens bytes (default)  each byte is a token: a vocabulary of 256
--tokens bpe              byte pair encoding: a vocabulary of N tokens (--vocab-size, default 1024) is learnt from the
                          part of TEXT that is not held out
--tokens gpt2             the tokens of GPT-2, for its published weights. TEXT is UTF-8, and FILE (--merges) is merges.txt,
                          or vocab.bpe, which is published with the weights
--held-out X              the last part of the text, about this fraction of it, is held out for evaluation (default 0.1)

The script writes to the folder OUT: train.bin and val.bin (uint16, little-endian, without a header) and vocab.txt. They
appear at the end, when they are complete. It requires only Python.

vocab.txt begins with the line `syncrun-gpt vocabulary 1`. Tokens 0 to 255 are the bytes. Each further line defines the
next token: the numbers of the two tokens that it joins. With `gpt2` at the end of the first line, the bytes have GPT-2's
order, and one more token, which no line defines, ends a document.
"""

import argparse
import array
import bz2
import collections
import gzip
import lzma
import os
import re
import sys
import unicodedata
from pathlib import Path
from typing import Callable, Iterable

FORMAT = "syncrun-gpt vocabulary 1"
BYTES = 256
MOST_TOKENS = 1 << 16
OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
# A pair is joined only within a chunk: a word or a run of other characters, each with the space before it, or a single
# white space character. demos/gpt/vocabulary.cpp divides a text in the same way.
CHUNK = re.compile(rb" ?[A-Za-z\x80-\xff]+| ?[^A-Za-z\x80-\xff\s]+|\s")

# GPT-2's order of the bytes: first those that are printable characters of Latin-1.
GPT2_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
GPT2_BYTES = GPT2_PRINTABLE + [byte for byte in range(BYTES) if byte not in GPT2_PRINTABLE]

Pair = tuple[int, int]


class PrepareError(Exception):
    """The input cannot be prepared. The message says what was expected and what was found."""


def read_text(path: Path) -> bytes:
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as file:
            return file.read()
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise PrepareError(f"cannot read {path}: {error}") from error


def split(text: bytes, held_out: float, is_utf8: bool) -> tuple[bytes, bytes]:
    """Divides the text into a part for training and one that is held out, at the end of a line if possible."""
    place = len(text) - round(len(text) * held_out)
    while is_utf8 and 0 < place < len(text) and text[place] & 0xC0 == 0x80:  # within a character
        place -= 1
    line_end = text.rfind(b"\n", 0, place)
    if line_end > place // 2:
        place = line_end + 1
    if place < 2 or len(text) - place < 2:
        raise PrepareError(f"expected a text with at least two bytes in each part, found {place} and {len(text) - place}")
    return text[:place], text[place:]


def pairs_of(tokens: list[int]) -> Iterable[Pair]:
    return zip(tokens, tokens[1:])


def join(tokens: list[int], pair: Pair, joined: int) -> list[int]:
    """Replaces each occurrence of the pair by the token `joined`, from left to right."""
    result = []
    i = 0
    while i < len(tokens):
        if i + 1 < len(tokens) and (tokens[i], tokens[i + 1]) == pair:
            result.append(joined)
            i += 2
        else:
            result.append(tokens[i])
            i += 1
    return result


def learn_pairs(text: bytes, vocab_size: int) -> list[Pair]:
    """Byte pair encoding: joins the most frequent pair of tokens again and again. Of equally frequent pairs, it takes the
    one with the smallest numbers. Source: R. Sennrich, B. Haddow, A. Birch, arXiv 1508.07909, section 3.2."""
    counted = collections.Counter(CHUNK.findall(text))
    chunks = [list(chunk) for chunk in counted]
    counts = list(counted.values())
    frequency: collections.Counter[Pair] = collections.Counter()
    places = collections.defaultdict(set)  # the chunks in which a pair occurs, or has occurred
    for i, chunk in enumerate(chunks):
        for pair in pairs_of(chunk):
            frequency[pair] += counts[i]
            places[pair].add(i)
    learnt: list[Pair] = []
    while BYTES + len(learnt) < vocab_size:
        best = max(frequency, key=lambda pair: (frequency[pair], (-pair[0], -pair[1])), default=None)
        if best is None or frequency[best] < 2:
            raise PrepareError(f"--vocab-size: expected at most {BYTES + len(learnt)} for this text, got {vocab_size}")
        for i in places.pop(best):
            for pair in pairs_of(chunks[i]):
                frequency[pair] -= counts[i]
            chunks[i] = join(chunks[i], best, BYTES + len(learnt))
            for pair in pairs_of(chunks[i]):
                frequency[pair] += counts[i]
                places[pair].add(i)
        del frequency[best]
        learnt.append(best)
    return learnt


def read_merges(path: Path) -> list[Pair]:
    """The pairs that GPT-2 joins. In the file, a byte is a character: itself if it is printable, otherwise one from 256."""
    characters = [chr(byte) for byte in GPT2_PRINTABLE] + [chr(BYTES + i) for i in range(BYTES - len(GPT2_PRINTABLE))]
    numbers = {character: number for number, character in enumerate(characters)}
    learnt: list[Pair] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PrepareError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        words = line.split(" ")
        if line.startswith("#version") or not line:
            continue
        if len(words) != 2 or words[0] not in numbers or words[1] not in numbers:
            raise PrepareError(f"{path}, line {number}: expected two tokens of lines before, as in GPT-2's merges.txt, "
                               f"found '{line}'")
        numbers["".join(words)] = BYTES + len(learnt)
        learnt.append((numbers[words[0]], numbers[words[1]]))
    if not 0 < len(learnt) < MOST_TOKENS - BYTES:
        raise PrepareError(f"{path}: expected from 1 to {MOST_TOKENS - BYTES - 1} pairs, found {len(learnt)}")
    return learnt


def gpt2_chunks() -> Callable[[bytes], list[bytes]]:
    """Divides a text as GPT-2 does. Source: https://github.com/openai/gpt-2, src/encoder.py."""
    numbers = "".join(chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in ("Nl", "No"))
    letter, digit = rf"[^\W\d_{numbers}]", rf"[\d{numbers}]"
    pattern = re.compile(rf"'s|'t|'re|'ve|'m|'ll|'d| ?{letter}+| ?{digit}+| ?(?:(?!{letter}|{digit})\S)+|\s+(?!\S)|\s+")

    def divide(text: bytes) -> list[bytes]:
        return [chunk.encode() for chunk in pattern.findall(text.decode())]

    return divide


class Encoder:
    def __init__(self, learnt: list[Pair], order: Iterable[int] = range(BYTES),
                 chunks: Callable[[bytes], list[bytes]] = CHUNK.findall):
        self.learnt = learnt
        self.numbers = {pair: BYTES + i for i, pair in enumerate(learnt)}
        self.token_of_byte = {byte: token for token, byte in enumerate(order)}
        self.chunks = chunks
        self.known: dict[bytes, list[int]] = {}

    def encode_chunk(self, chunk: bytes) -> list[int]:
        tokens = [self.token_of_byte[byte] for byte in chunk]
        while True:
            first = min((self.numbers[pair] for pair in pairs_of(tokens) if pair in self.numbers), default=None)
            if first is None:
                return tokens
            tokens = join(tokens, self.learnt[first - BYTES], first)

    def encode(self, text: bytes) -> array.array:
        tokens = array.array("H")
        if not self.numbers:
            tokens.extend(text)
            return tokens
        for chunk in self.chunks(text):
            if chunk not in self.known:
                self.known[chunk] = self.encode_chunk(chunk)
            tokens.extend(self.known[chunk])
        return tokens


def little_endian(tokens: array.array) -> bytes:
    if sys.byteorder == "big":
        tokens = array.array("H", tokens)
        tokens.byteswap()
    return tokens.tobytes()


def write_files(out: Path, contents: dict[str, bytes]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        with open(out / (name + ".tmp"), "wb") as file:
            file.write(content)
    for name in contents:
        os.replace(out / (name + ".tmp"), out / name)


def encoder_of(training: bytes, options: argparse.Namespace) -> Encoder:
    if options.tokens == "gpt2":
        return Encoder(read_merges(options.merges), GPT2_BYTES, gpt2_chunks())
    return Encoder(learn_pairs(training, options.vocab_size) if options.tokens == "bpe" else [])


def prepare(options: argparse.Namespace) -> str:
    text = read_text(options.text)
    training, validation = split(text, options.held_out, options.tokens == "gpt2")
    encoder = encoder_of(training, options)
    try:
        train, val = encoder.encode(training), encoder.encode(validation)
    except UnicodeDecodeError as error:
        raise PrepareError(f"expected UTF-8 in {options.text} (--tokens gpt2): {error}") from error
    is_gpt2 = options.tokens == "gpt2"
    lines = [FORMAT + (" gpt2" if is_gpt2 else ""), *(f"{a} {b}" for a, b in encoder.learnt)]
    vocabulary = "".join(line + "\n" for line in lines)
    write_files(options.out, {"train.bin": little_endian(train), "val.bin": little_endian(val),
                              "vocab.txt": vocabulary.encode()})
    size = BYTES + len(encoder.learnt) + is_gpt2
    return (f"{options.out}: {len(train):,} tokens to train on, {len(val):,} held out, a vocabulary of {size}, "
            f"{len(text) / (len(train) + len(val)):.2f} bytes per token")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n\n")[0], add_help=False)
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", choices=["bytes", "bpe", "gpt2"], default="bytes")
    parser.add_argument("--vocab-size", type=int, default=1024)
    parser.add_argument("--merges", type=Path)
    parser.add_argument("--held-out", type=float, default=0.1)
    options = parser.parse_args(arguments)
    if not BYTES <= options.vocab_size <= MOST_TOKENS:
        parser.error(f"--vocab-size: expected a number from {BYTES} to {MOST_TOKENS}, got {options.vocab_size}")
    if (options.tokens == "gpt2") != (options.merges is not None):
        parser.error("--merges: expected GPT-2's file merges.txt with --tokens gpt2, and only with it")
    if not 0 < options.held_out < 1:
        parser.error(f"--held-out: expected a number above 0 and below 1, got {options.held_out}")
    return options


def main(arguments: list[str]) -> int:
    if "--help" in arguments:
        print(__doc__, end="")
        return 0
    options = parse(arguments)
    try:
        print(prepare(options))
    except (PrepareError, OSError) as error:
        print(f"prepare_tokens.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
