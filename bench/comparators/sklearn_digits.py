#!/usr/bin/env python3
"""Trains scikit-learn's MLP on data/digits: two hidden layers of 800, SGD with Nesterov momentum, 20 epochs.

    sklearn_digits.py --data data/digits --seed 0

Prints a message and exits with status 77 (skipped) if scikit-learn is not installed.
"""

import argparse
import json
import pathlib
import struct
import sys
import time
import warnings

SKIPPED = 77

try:
    import numpy
    import sklearn
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier
except ImportError as error:
    print(f"skipped: {error}", file=sys.stderr)
    sys.exit(SKIPPED)


def read_idx(path):
    """Reads an IDX file of unsigned bytes: two zero bytes, 0x08, the number of dimensions, the shape as big-endian
    numbers of 32 bits, and the data."""
    raw = path.read_bytes()
    zero, dtype, rank = struct.unpack(">HBB", raw[:4])
    if zero != 0 or dtype != 0x08:
        raise ValueError(f"{path}: not an IDX file of unsigned bytes")
    shape = struct.unpack(f">{rank}I", raw[4:4 + 4 * rank])
    return numpy.frombuffer(raw, dtype=numpy.uint8, offset=4 + 4 * rank).reshape(shape)


def read_set(directory, name):
    images = read_idx(directory / f"digits-{name}-images-idx3-ubyte")
    labels = read_idx(directory / f"digits-{name}-labels-idx1-ubyte")
    return images.reshape(len(images), -1).astype(numpy.float32) / 16, labels


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    train_images, train_labels = read_set(options.data, "train")
    test_images, test_labels = read_set(options.data, "test")
    model = MLPClassifier(
        hidden_layer_sizes=(800, 800),
        solver="sgd",
        learning_rate_init=0.1,
        momentum=0.9,
        nesterovs_momentum=True,
        batch_size=50,
        max_iter=options.epochs,
        n_iter_no_change=options.epochs,  # all epochs, never an early stop
        alpha=0.0,
        random_state=options.seed,
    )
    warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is fixed on purpose
    start = time.perf_counter()
    model.fit(train_images, train_labels)
    seconds = time.perf_counter() - start
    print(json.dumps({
        "name": "digits",
        "impl": "sklearn",
        "workers": 1,
        "accuracy": round(float(model.score(test_images, test_labels)), 5),
        "seconds": round(seconds, 3),
        "epochs": model.n_iter_,
        "version": sklearn.__version__,
    }))


if __name__ == "__main__":
    main()
