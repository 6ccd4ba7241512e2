"""DP-EBM of InterpretML on one split of a table: run by benchmarks/dp_ebm.py, in an environment of its own.

    python -m venv ENV && ENV/bin/pip install interpret-core==0.7.8
    ENV/bin/python benchmarks/dp_ebm_peer.py TRAIN UNSEEN TARGET EPSILON SEED

Everything but epsilon, delta and the seed is its default. So the bounds of columns (and of the target of a regression)
are taken from the data, as its own warning says; that is in no epsilon. Prints the scores as JSON.
"""

import json
import sys
import warnings

import pandas as pd
from interpret.privacy import (  # pyright: ignore[reportMissingImports]
    DPExplainableBoostingClassifier,
    DPExplainableBoostingRegressor,
)
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score

DELTA = 1e-5


def main() -> None:
    warnings.simplefilter("ignore")
    train, unseen = (pd.read_csv(path, skipinitialspace=True) for path in sys.argv[1:3])
    target, epsilon, seed = sys.argv[3], float(sys.argv[4]), int(sys.argv[5])
    columns, (y, truth) = [name for name in train if name != target], (table[target] for table in (train, unseen))
    settings = {"epsilon": epsilon, "delta": DELTA, "random_state": seed, "n_jobs": 1}
    if pd.api.types.is_numeric_dtype(y):
        model = DPExplainableBoostingRegressor(**settings).fit(train[columns], y)
        found = {"R2": r2_score(truth, model.predict(unseen[columns]))}
    else:
        model = DPExplainableBoostingClassifier(**settings).fit(train[columns], y)
        chance = model.predict_proba(unseen[columns])[:, 1]
        found = {
            "AUC": roc_auc_score(truth == model.classes_[1], chance),
            "accuracy": accuracy_score(truth, model.predict(unseen[columns])),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
