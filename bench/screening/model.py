"""The screening's computation: molecules as text to predicted efficiencies. Imported by the program and its workers."""

import csv
import functools
import gzip
import itertools
import pathlib
import pickle

import numpy as np
from rdkit import Chem, RDLogger
from rdkit.Chem import rdFingerprintGenerator
from sklearn.metrics import r2_score
from sklearn.neural_network import MLPRegressor

MOLECULES = pathlib.Path(__file__).resolve().parents[2] / "examples/07_molecules/molecules.csv.gz"
BITS = 1024

RDLogger.DisableLog("rdApp.*")
_fingerprints = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=BITS)


def features(smiles):
    """Returns a row for each molecule: the bits of its Morgan fingerprint."""
    rows = np.empty((len(smiles), BITS), dtype=np.float32)
    for row, text in zip(rows, smiles):
        row[:] = _fingerprints.GetFingerprintAsNumPy(Chem.MolFromSmiles(text))
    return rows


@functools.lru_cache(maxsize=1)
def _load(model):
    with open(model, "rb") as file:
        return pickle.load(file)


def screen(model, smiles):
    """The task: predicts the efficiencies of some molecules. Each process reads the model's file once."""
    return _load(model).predict(features(smiles))


def read(path, count):
    """Returns `count` molecules, and all rows of the file; the file's molecules are repeated if `count` is larger."""
    with gzip.open(path, "rt") as file:
        rows = list(csv.DictReader(file))
    smiles = [row["smiles"] for row in rows]
    return list(itertools.islice(itertools.cycle(smiles), count)), rows


def train(rows, path, count):
    """Trains a model on molecules from the whole table, and writes it into a file; returns how well it predicts the
    neighbours of these molecules in the table."""
    step = max(2, len(rows) // count)
    known, others = rows[::step], rows[1::step]
    regressor = MLPRegressor(hidden_layer_sizes=(64,), max_iter=30, early_stopping=True, random_state=1)
    regressor.fit(features([row["smiles"] for row in known]), [float(row["PCE"]) for row in known])
    truth = [float(row["PCE"]) for row in others]
    with open(path, "wb") as file:
        pickle.dump(regressor, file)
    return {"trained_on": len(known), "r2_on_others": r2_score(truth, regressor.predict(features([row["smiles"] for row in others])))}
