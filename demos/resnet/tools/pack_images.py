#!/usr/bin/env python3
"""Packs images and labels into the .npy files that syncrun-resnet learns from.

usage: pack_images.py ROOT OUT [--test-root DIR | --test-fraction X] [--size N] [--on-error fail|skip] [--jobs N]
                      [--seed N]
       pack_images.py --idx IMAGES LABELS [--idx-test IMAGES LABELS] OUT [--size N]

The folder ROOT has one folder of images per class (ROOT/cat/1.jpg). The shorter side of each image is scaled to SIZE
pixels, and the middle is cut out. The test images come from a folder DIR of the same form (as ImageNet's train and
val), or are a fraction of each class. This requires Pillow.

With --idx, the images are grey images in IDX files, plain or .gz (MNIST; Syncrun's data/digits). They are enlarged to
SIZE, converted to RGB, and brightened so that the largest pixel is 255. This requires only Python.

The script writes to OUT: images.npy (uint8, [rows, SIZE, SIZE, 3]), labels.npy (int64, [rows]) and classes.txt (a name
per line, in the order of labels). With --test-root, --test-fraction or --idx-test, it also writes images_test.npy and
labels_test.npy. The files appear at the end, when they are complete.
"""

import argparse
import gzip
import math
import multiprocessing
import multiprocessing.pool
import os
import random
import struct
import sys
import time
from pathlib import Path
from typing import BinaryIO, Callable, Iterable, NamedTuple, Optional

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
HEADER_BYTES = 128
IDX_IMAGES = 0x00000803
IDX_LABELS = 0x00000801


class PackError(Exception):
    """The input cannot be packed. The message says what was expected and what was found."""


class NpyFile:
    """A .npy file of rows that are added one by one. The header has the number of rows, and is written last. Until
    appear(), the file has a temporary name beside its place. Source of the format: NumPy's NEP 1, version 1."""

    def __init__(self, path: Path, dtype: str, row_shape: tuple[int, ...]):
        self.path = path
        self.dtype = dtype
        self.row_shape = row_shape
        self.rows = 0
        self.temporary = path.with_name(path.name + ".tmp")
        self.stream: BinaryIO = open(self.temporary, "wb")
        self.stream.write(bytes(HEADER_BYTES))

    def append(self, row: bytes) -> None:
        self.stream.write(row)
        self.rows += 1

    def header(self) -> bytes:
        shape = ", ".join(str(extent) for extent in (self.rows, *self.row_shape))
        comma = "" if self.row_shape else ","
        text = f"{{'descr': '{self.dtype}', 'fortran_order': False, 'shape': ({shape}{comma}), }}"
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", HEADER_BYTES - 10) + text.ljust(HEADER_BYTES - 11).encode() + b"\n"

    def close(self) -> None:
        self.stream.seek(0)
        self.stream.write(self.header())
        self.stream.close()

    def appear(self) -> None:
        os.replace(self.temporary, self.path)

    def abandon(self) -> None:
        self.stream.close()
        self.temporary.unlink(missing_ok=True)


class Packed:
    """A pair of files: images and their labels."""

    def __init__(self, out: Path, suffix: str, size: int):
        self.images = NpyFile(out / f"images{suffix}.npy", "|u1", (size, size, 3))
        self.labels = NpyFile(out / f"labels{suffix}.npy", "<i8", ())

    def append(self, pixels: bytes, label: int) -> None:
        self.images.append(pixels)
        self.labels.append(struct.pack("<q", label))


class Pairs:
    """The pairs of a folder, to be used with `with`. The files appear together at the end of the block. If the block
    raises an exception, no file appears."""

    def __init__(self) -> None:
        self.files: list[NpyFile] = []

    def add(self, out: Path, suffix: str, size: int) -> Packed:
        packed = Packed(out, suffix, size)
        self.files += [packed.images, packed.labels]
        return packed

    def __enter__(self) -> "Pairs":
        return self

    def __exit__(self, kind: Optional[type], *_: object) -> None:
        try:
            if kind is None:
                for file in self.files:
                    file.close()  # raises if the disk is full, before any file appears
                for file in self.files:
                    file.appear()
        finally:
            for file in self.files:
                file.abandon()


class Meter:
    """Shows progress on standard error. On a terminal it rewrites one line. Otherwise it prints a line every ten
    seconds."""

    def __init__(self, total: int, what: str):
        self.total = total
        self.what = what
        self.done = 0
        self.is_terminal = sys.stderr.isatty()
        self.started = self.next = time.monotonic()

    def step(self) -> None:
        self.done += 1
        now = time.monotonic()
        if now < self.next and self.done != self.total:
            return
        self.next = now + (0.2 if self.is_terminal else 10)
        rate = self.done / max(now - self.started, 1e-9)
        line = f"{self.what}: {self.done}/{self.total} images, {rate:.0f} per second"
        end = "\n" if self.done == self.total or not self.is_terminal else ""
        print(("\r\x1b[K" if self.is_terminal else "") + line, end=end, file=sys.stderr, flush=True)


def prepare_folder(out: Path) -> None:
    """Makes the folder, and removes files that were packed there before. Otherwise old and new files could be mixed."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("images.npy", "labels.npy", "images_test.npy", "labels_test.npy", "classes.txt"):
        (out / name).unlink(missing_ok=True)


def write_classes(out: Path, names: Iterable[str]) -> None:
    (out / "classes.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


class Counts(NamedTuple):
    training: int
    test: int
    classes: int
    skipped: int


def say_packed(out: Path, counts: Counts, how_to_test: str) -> None:
    print(f"{out}: packed {counts.training} images to train on, {counts.test} to test on, of {counts.classes} classes; "
          f"skipped {counts.skipped}")
    if counts.test == 0:
        print(f"Nothing was packed to evaluate on: give syncrun-resnet --evaluate-fraction, or pack with {how_to_test}")


# Folders of images.


class Job(NamedTuple):
    path: Path
    label: int
    size: int


class Result(NamedTuple):
    path: Path
    label: int
    pixels: bytes
    error: str  # empty if there was no error


def decode(job: Job) -> Result:
    """Reads an image with Pillow. Returns it as size x size RGB."""
    from PIL import Image

    try:
        with Image.open(job.path) as image:
            image.draft("RGB", (job.size, job.size))  # lets Pillow decode a JPEG file at a fraction of its size
            rgb = image.convert("RGB")
        scale = job.size / min(rgb.size)
        width, height = (max(job.size, round(side * scale)) for side in rgb.size)
        left, top = (width - job.size) // 2, (height - job.size) // 2
        resized = rgb.resize((width, height), Image.Resampling.BILINEAR)
        return Result(job.path, job.label, resized.crop((left, top, left + job.size, top + job.size)).tobytes(), "")
    except Exception as error:  # a damaged file can make Pillow raise any exception
        return Result(job.path, job.label, b"", f"{type(error).__name__}: {error}")


def find_classes(root: Path, fewest: int) -> dict[str, list[Path]]:
    """Returns the images of each class. Classes and images are in alphabetical order."""
    if not root.is_dir():
        raise PackError(f"{root}: expected a folder with a folder per class, got {'a file' if root.exists() else 'none'}")
    classes = {folder.name: folder for folder in root.iterdir() if folder.is_dir()}
    if len(classes) < fewest:
        raise PackError(f"{root}: expected a folder per class, {fewest} or more, got {len(classes)}")
    found = {}
    for name in sorted(classes):
        files = sorted(path for path in classes[name].rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
        if not files:
            raise PackError(f"{classes[name]}: expected one image or more ({' '.join(sorted(SUFFIXES))}), got none")
        found[name] = files
    return found


def split(files: list[Path], fraction: float, chooser: random.Random) -> tuple[list[Path], list[Path]]:
    """Returns the training images and the test images of a class. At least one image is left for training."""
    count = min(math.ceil(fraction * len(files)), len(files) - 1)
    test = set(chooser.sample(range(len(files)), count))
    return [f for i, f in enumerate(files) if i not in test], [f for i, f in enumerate(files) if i in test]


def find_test_classes(options: argparse.Namespace, classes: list[str]) -> dict[str, list[Path]]:
    """Returns the images of --test-root. Its classes must be classes of ROOT, but need not be all of them."""
    if options.test_root.resolve() == options.root.resolve():
        raise PackError(f"--test-root: expected another folder than ROOT, got {options.root} for both")
    found = find_classes(options.test_root, fewest=1)
    for name in found:
        if name not in classes:
            raise PackError(f"{options.test_root / name}: expected a class that {options.root} has, got '{name}'")
    without = [name for name in classes if name not in found]
    if without:
        print(f"{options.test_root}: no test images of {len(without)} of {len(classes)} classes, the first of them "
              f"'{without[0]}'", file=sys.stderr)
    return found


def find_images(options: argparse.Namespace) -> tuple[list[str], list[Job], list[Job]]:
    """Returns the names of the classes, the training images and the test images."""
    classes = find_classes(options.root, fewest=2)
    test_classes = find_test_classes(options, list(classes)) if options.test_root else {}
    chooser = random.Random(options.seed)
    training: list[Job] = []
    test: list[Job] = []
    for label, (name, files) in enumerate(classes.items()):
        of_training, of_test = split(files, options.test_fraction, chooser)
        training += [Job(path, label, options.size) for path in of_training]
        test += [Job(path, label, options.size) for path in of_test + test_classes.get(name, [])]
    return list(classes), training, test


def pack_jobs(pool: multiprocessing.pool.Pool, jobs: list[Job], packed: Packed, options: argparse.Namespace) -> int:
    """Packs the images of `jobs`. Returns the number of images that could be read."""
    meter = Meter(len(jobs), packed.images.path.name)
    for result in pool.imap(decode, jobs, chunksize=8):
        meter.step()
        if not result.error:
            packed.append(result.pixels, result.label)
            continue
        message = f"{result.path}: expected an image that can be read: {result.error}"
        if options.on_error == "fail":
            raise PackError(message + " (--on-error skip leaves such images out)")
        print(f"skipped {message}", file=sys.stderr)
    if packed.images.rows == 0:
        raise PackError(f"expected one image that can be read, got none of {len(jobs)}")
    return packed.images.rows


def pack_folder(options: argparse.Namespace) -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise PackError("packing a folder of images requires Pillow (python3-pil, or pip install pillow), got none") from None
    classes, training, test = find_images(options)
    prepare_folder(options.out)
    rows = {"": 0, "_test": 0}
    with multiprocessing.Pool(options.jobs) as pool, Pairs() as pairs:
        for suffix, jobs in (("", training), ("_test", test)):
            if jobs:
                packed = pairs.add(options.out, suffix, options.size)
                rows[suffix] = pack_jobs(pool, jobs, packed, options)
    write_classes(options.out, classes)
    skipped = len(training) + len(test) - sum(rows.values())
    counts = Counts(rows[""], rows["_test"], len(classes), skipped)
    say_packed(options.out, counts, "--test-root or --test-fraction")


# IDX files.


def read_idx(path: Path, magic: int, dimensions: int) -> tuple[list[int], bytes]:
    """Returns the extents and the bytes of an IDX file of uint8. Source of the format: the page of the MNIST data
    set."""
    if not path.is_file():
        raise PackError(f"{path}: expected an IDX file, got none")
    raw = path.read_bytes()
    content = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    start = 4 + 4 * dimensions
    if len(content) < start or struct.unpack(">I", content[:4])[0] != magic:
        raise PackError(f"{path}: expected IDX magic number 0x{magic:08x}, got 0x{content[:4].hex()}")
    extents = list(struct.unpack(f">{dimensions}I", content[4:start]))
    if len(content) - start != math.prod(extents):
        raise PackError(f"{path}: expected {math.prod(extents)} bytes behind the header, got {len(content) - start}")
    return extents, content[start:]


class IdxPair(NamedTuple):
    height: int
    width: int
    images: list[bytes]
    labels: bytes


def read_idx_pair(images_path: Path, labels_path: Path) -> IdxPair:
    (rows, height, width), pixels = read_idx(images_path, IDX_IMAGES, 3)
    (count,), labels = read_idx(labels_path, IDX_LABELS, 1)
    if rows != count:
        raise PackError(f"{labels_path}: expected {rows} labels, as there are images, got {count}")
    if rows == 0 or height == 0 or width == 0:
        raise PackError(f"{images_path}: expected images, got {rows} of {height} x {width} pixels")
    elements = height * width
    return IdxPair(height, width, [pixels[i * elements : (i + 1) * elements] for i in range(rows)], labels)


def taps(size_in: int, size_out: int) -> list[tuple[int, int, float]]:
    """Returns for each pixel of the output the two pixels of the input between which it lies, and its distance from the
    first. The place of a pixel is its middle. Beyond the outermost pixels, their values continue."""
    found = []
    for i in range(size_out):
        place = min(max((i + 0.5) * size_in / size_out - 0.5, 0), size_in - 1)
        first = min(int(place), size_in - 1)
        found.append((first, min(first + 1, size_in - 1), place - first))
    return found


def enlarge(image: bytes, height: int, width: int, size: int, gain: float) -> bytes:
    """Enlarges a grey image with bilinear interpolation. Returns it as size x size RGB, with pixels times `gain`."""
    across = taps(width, size)
    lines = []
    for y in range(height):
        line = [pixel * gain for pixel in image[y * width : (y + 1) * width]]
        lines.append([line[a] + (line[b] - line[a]) * part for a, b, part in across])
    grey = bytearray()
    for a, b, part in taps(height, size):
        grey += bytes(int(p + (q - p) * part + 0.5) for p, q in zip(lines[a], lines[b]))
    rgb = bytearray(3 * len(grey))
    for channel in range(3):
        rgb[channel::3] = grey
    return bytes(rgb)


def pack_idx(options: argparse.Namespace) -> None:
    training = read_idx_pair(*options.idx)
    test = read_idx_pair(*options.idx_test) if options.idx_test else None
    gain = 255 / max(1, max(max(image) for image in training.images))
    prepare_folder(options.out)
    with Pairs() as pairs:
        for suffix, pair in (("", training), ("_test", test)):
            if pair is None:
                continue
            packed = pairs.add(options.out, suffix, options.size)
            meter = Meter(len(pair.labels), packed.images.path.name)
            for image, label in zip(pair.images, pair.labels):
                brightened = min(gain, 255 / max(1, max(image)))  # a test image may be brighter than any training image
                packed.append(enlarge(image, pair.height, pair.width, options.size, brightened), label)
                meter.step()
    classes = max(training.labels) + 1
    write_classes(options.out, map(str, range(classes)))
    counts = Counts(len(training.labels), len(test.labels) if test else 0, classes, skipped=0)
    say_packed(options.out, counts, "--idx-test")


def whole(first: int, last: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdigit() or not first <= int(text) <= last:
            raise argparse.ArgumentTypeError(f"expected a whole number from {first} to {last}, got '{text}'")
        return int(text)

    return parse


def fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to below 1, got '{text}'")
    return value


def parse_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     usage=argparse.SUPPRESS)
    parser.add_argument("folders", nargs="+", type=Path, metavar="[ROOT] OUT")
    parser.add_argument("--size", type=whole(32, 1024), default=256, help="height and width, 32 to 1024 (default 256)")
    parser.add_argument("--test-root", type=Path, metavar="DIR", help="a folder like ROOT, of images to test")
    parser.add_argument("--test-fraction", type=fraction, default=0, help="of each class (default 0)")
    parser.add_argument("--on-error", choices=["fail", "skip"], default="fail", help="where an image cannot be read")
    parser.add_argument("--jobs", type=whole(1, 1024), default=os.cpu_count(), help="processes (default: one per core)")
    parser.add_argument("--seed", type=whole(0, 2**63), default=1, help="of which images are for the test (default 1)")
    parser.add_argument("--idx", nargs=2, type=Path, metavar=("IMAGES", "LABELS"))
    parser.add_argument("--idx-test", nargs=2, type=Path, metavar=("IMAGES", "LABELS"))
    options = parser.parse_intermixed_args(arguments)  # options may stand between ROOT and OUT
    expected = 1 if options.idx else 2
    if len(options.folders) != expected:
        parser.error(f"expected {'OUT' if options.idx else 'ROOT and OUT'}, got {len(options.folders)} folders")
    if options.idx_test and not options.idx:
        parser.error("--idx-test: expected --idx beside it, got none")
    for beside, given in (("--test-fraction", options.test_fraction), ("--idx", options.idx)):
        if options.test_root and given:
            parser.error(f"--test-root: expected neither --test-fraction nor --idx beside it, got {beside}")
    options.root, options.out = options.folders[0], options.folders[-1]
    return options


def main(arguments: list[str]) -> int:
    options = parse_options(arguments)
    try:
        pack_idx(options) if options.idx else pack_folder(options)
    except (PackError, OSError) as error:
        print(f"pack_images.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
