"""diffprivlib on one split of a table: run by benchmarks/small_tables.py, in an environment of its own.

    python -m venv ENV && ENV/bin/pip install scikit-learn==1.5.2 diffprivlib==0.6.6
    ENV/bin/python benchmarks/diffprivlib_peer.py SPLIT.npz EPSILON

Its models need bounds of the data. They are given here from the data themselves, outside of any guarantee: that leaks,
and makes the figures better than honest ones. Its epsilon is pure: delta is 0. Prints JSON, by the name of the measure:
R2, or the accuracy and, where there are two classes, the AUC.
"""

import json
import sys
import warnings

import numpy as np
from diffprivlib.models import LinearRegression, LogisticRegression
from sklearn.metrics import roc_auc_score


def main() -> None:
    warnings.simplefilter("ignore")
    split, epsilon = np.load(sys.argv[1], allow_pickle=False), float(sys.argv[2])
    centre, scale = split["x"].mean(0), split["x"].std(0)
    x, unseen = ((split[name] - centre) / np.where(scale > 0, scale, 1) for name in ("x", "unseen_x"))
    if split["y"].dtype.kind == "f":
        bounds = (x.min(0), x.max(0)), (split["y"].min(), split["y"].max())
        unseen = np.clip(unseen, *bounds[0])
        model = LinearRegression(epsilon=epsilon, bounds_X=bounds[0], bounds_y=bounds[1])
    else:
        model = LogisticRegression(epsilon=epsilon, data_norm=float(np.linalg.norm(x, axis=1).max()), max_iter=1000)
    truth = split["unseen_y"]
    score = model.fit(x, split["y"]).score(unseen, truth)
    if truth.dtype.kind == "f":
        print(json.dumps({"R2": score}))
    elif len(model.classes_) == 2:
        print(json.dumps({"accuracy": score, "AUC": roc_auc_score(truth, model.decision_function(unseen))}))
    else:
        print(json.dumps({"accuracy": score}))


if __name__ == "__main__":
    main()
