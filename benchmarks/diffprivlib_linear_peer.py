"""diffprivlib's logistic regression on splits of one table: run by benchmarks/linear_models.py, in its own environment.

    ENV/bin/python benchmarks/diffprivlib_linear_peer.py TABLE.npz EPSILON RUNS

Prints JSON: by the strength of its regularisation (its default C = 1, and C = 100), the accuracy and the AUC of each
run. Its epsilon is pure: delta is 0.
"""

import json
import sys
import warnings

import numpy as np
from diffprivlib.models import LogisticRegression
from sklearn.metrics import roc_auc_score


def main() -> None:
    warnings.simplefilter("ignore")
    table, epsilon, runs = np.load(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    x, y, norm = table["x"], table["y"], float(table["data_norm"])
    scores: dict[str, list[dict[str, float]]] = {"1": [], "100": []}
    for run in range(runs):
        order = np.random.default_rng(run).permutation(len(y))
        held, kept = order[: len(y) // 5], order[len(y) // 5 :]
        for strength, found in scores.items():
            model = LogisticRegression(epsilon=epsilon, data_norm=norm, C=float(strength), max_iter=1000)
            model.fit(x[kept], y[kept])
            area = roc_auc_score(y[held], model.decision_function(x[held]))
            found.append({"accuracy": model.score(x[held], y[held]), "AUC": float(area)})
    print(json.dumps(scores))


if __name__ == "__main__":
    main()
