"""Files of skops: types that need no trust, and crafted ones that scikit-learn would read out of bounds."""

import copy
import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.predictor.backends.planted import planted
from tests.predictor.backends.tables import ROW, answer, pinned

from pilotlight_predictor.backends import sklearn
from pilotlight_predictor.backends.base import LoadSpec
from pilotlight_predictor.backends.python.source import UserModule
from pilotlight_predictor.backends.trusted_pickles import finding
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.model_config import ModelConfig


def test_skops_needs_no_trust_unless_it_has_other_types(tmp_path: Path, estimator: Any) -> None:
    from skops import io

    path = tmp_path / "model.skops"
    io.dump(estimator, path)
    assert answer(sklearn.load(LoadSpec(ModelConfig("m"), 1, path, tmp_path)), x=ROW) == {"predict": [0]}
    io.dump({"a": SimpleNamespace(b=1)}, path)
    unsafe = r"not known to be safe \(types\.SimpleNamespace\).*--trust-pickle model\.skops="
    with pytest.raises(LoadFailed, match=unsafe):
        sklearn.load(LoadSpec(ModelConfig("m"), 1, path, tmp_path))
    with pytest.raises(LoadFailed, match="holds a dict"):
        sklearn.load(pinned(path))


@pytest.mark.parametrize(
    "name",
    ["tree.DecisionTreeClassifier", "ensemble.GradientBoostingClassifier", "ensemble.RandomForestRegressor",
     "ensemble.IsolationForest", "neighbors.KNeighborsClassifier", "neural_network.MLPClassifier",
     "multiclass.OneVsRestClassifier"],
)  # fmt: skip
def test_skops_of_trees_neighbours_and_networks_need_no_trust(tmp_path: Path, data: Any, name: str) -> None:
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from skops import io

    module, _, kind = name.partition(".")
    few: dict[str, dict[str, Any]] = {
        "ensemble": {"n_estimators": 3},
        "neural_network": {"tol": 9.0, "n_iter_no_change": 1},
        "multiclass": {"estimator": GradientBoostingClassifier(n_estimators=3)},  # not fitted, beside its clones
    }
    estimator = getattr(importlib.import_module(f"sklearn.{module}"), kind)(**few.get(module, {}))
    estimator = make_pipeline(SimpleImputer(), estimator).fit(data.x, data.y)
    path = tmp_path / "model.skops"
    io.dump(estimator, path)
    loaded = sklearn.load(LoadSpec(ModelConfig("m"), 1, path, tmp_path))
    assert np.array_equal(answer(loaded, x=data.x)["predict"], estimator.predict(data.x))


@pytest.mark.parametrize(("field", "value"), [("left_child", 1 << 40), ("right_child", 0), ("feature", 4)])
def test_a_tree_of_skops_with_indices_out_of_range_is_refused(
    tmp_path: Path, data: Any, field: str, value: int
) -> None:
    from sklearn.ensemble import RandomForestClassifier
    from skops import io

    forest = RandomForestClassifier(2).fit(data.x, data.y)
    tree = forest.estimators_[1].tree_
    state = tree.__getstate__()
    state["nodes"][field][0] = value
    tree.__setstate__(state)
    path = tmp_path / "model.skops"
    io.dump(forest, path)
    with pytest.raises(LoadFailed, match=r"a tree of its .* has indices that are out of range"):
        sklearn.load(LoadSpec(ModelConfig("m"), 1, path, tmp_path))


def _with_arrays_as_trees(boosted: Any, _: Any) -> Any:
    """Its types are all trusted by skops, and of sparse rows scikit-learn casts whatever `tree_` is."""
    from skops import io

    for tree in boosted.estimators_.ravel():
        tree.tree_ = np.full(9, 1 << 40)
    assert io.get_untrusted_types(data=io.dumps(boosted)) == []
    return boosted


def _with_more_trees_than_outputs(boosted: Any, _: Any) -> Any:
    boosted.estimators_ = np.repeat(boosted.estimators_, 2, axis=1)
    return boosted


def _with_a_sound_tree_beside_its_own(_: Any, tree: Any) -> Any:
    tree.estimators_ = [copy.deepcopy(tree)]
    state = tree.tree_.__getstate__()
    state["nodes"]["left_child"][0] = 1 << 40
    tree.tree_.__setstate__(state)
    return tree


@pytest.mark.parametrize(
    ("craft", "why"),
    [
        (_with_arrays_as_trees, "a tree of its GradientBoostingRegressor has indices that are out of range"),
        (_with_a_sound_tree_beside_its_own, "a tree of its DecisionTreeRegressor has indices that are out of range"),
        (_with_more_trees_than_outputs, "its GradientBoostingRegressor has other numbers of trees and of outputs"),
    ],
)
def test_crafted_trees_of_skops_are_refused(tmp_path: Path, data: Any, craft: Any, why: str) -> None:
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.tree import DecisionTreeRegressor
    from skops import io

    boosted, tree = GradientBoostingRegressor(n_estimators=2), DecisionTreeRegressor(max_depth=2)
    path = tmp_path / "model.skops"
    io.dump(craft(boosted.fit(data.x, data.y), tree.fit(data.x, data.y)), path)
    with pytest.raises(LoadFailed, match=f"model.skops is damaged or not an estimator: {why}$"):
        sklearn.load(LoadSpec(ModelConfig("m"), 1, path, tmp_path))


@pytest.mark.parametrize("kernel", ["rbf", "precomputed"])
@pytest.mark.parametrize("kind", ["SVC", "NuSVC", "SVR", "NuSVR", "OneClassSVM"])
def test_support_vectors_of_skops_are_served_unless_their_arrays_do_not_fit(
    tmp_path: Path, data: Any, kind: str, kernel: str
) -> None:
    from sklearn import svm
    from skops import io

    x = data.x @ data.x.T if kernel == "precomputed" else data.x
    path, machine = tmp_path / "model.skops", getattr(svm, kind)(kernel=kernel).fit(x, data.y)
    io.dump(machine, path)
    loaded = sklearn.load(LoadSpec(ModelConfig("m"), 1, path, tmp_path))
    assert answer(loaded, x=x[:9]) == {"predict": machine.predict(x[:9]).tolist()}
    support, counts = machine.support_, machine._n_support
    shifted = counts + np.array([1 << 29, -(1 << 29), *counts[2:] * 0], counts.dtype)
    crafted: list[dict[str, Any]] = [
        {"_n_support": shifted, "_impl": "c_svc"}, {"_dual_coef_": machine._dual_coef_[:, :1].copy()},
        {"_intercept_": machine._intercept_[:0]}, {"_probA": np.zeros(len(counts) + 3)}, {"_sparse": True},
        {"support_": support + (1 << 20)} if kernel == "precomputed" else {"support_vectors_": np.zeros((1, 4))},
    ]  # fmt: skip
    for fields in crafted:
        changed = copy.deepcopy(machine)
        vars(changed).update(fields)
        io.dump(changed, path)
        with pytest.raises(LoadFailed, match=f"arrays of its {kind} do not fit each other"):
            sklearn.load(LoadSpec(ModelConfig("m"), 1, path, tmp_path))


def test_a_tree_of_neighbours_in_skops_is_made_from_its_points(tmp_path: Path, data: Any) -> None:
    from sklearn.neighbors import KNeighborsClassifier
    from skops import io

    nearest = KNeighborsClassifier(1, algorithm="kd_tree").fit(data.x, data.y)
    points, indices, *rest = nearest._tree.__getstate__()
    nearest._tree.__setstate__((points, np.full_like(indices, 1 << 40), *rest))
    path = tmp_path / "model.skops"
    io.dump(nearest, path)
    assert answer(sklearn.load(LoadSpec(ModelConfig("m"), 1, path, tmp_path)), x=ROW) == {"predict": [0]}


def test_a_class_of_a_script_in_skops_is_not_taken_from_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sklearn.base import BaseEstimator
    from skops import io

    own = type("Own", (BaseEstimator,), {"__module__": "__main__", "predict": lambda self, x: x})
    monkeypatch.setattr("__main__.Own", own, raising=False)
    io.dump(own(), path := tmp_path / "m.skops")
    with pytest.raises(LoadFailed, match=r"^m\.skops needs __main__\.Own, of the script that saved it: define"):
        sklearn.load(pinned(path))


def test_the_modules_of_a_model_that_loads_another_are_not_reached_by_its_names(tmp_path: Path, estimator: Any) -> None:
    from skops import io

    io.dump(estimator, path := tmp_path / "m.skops")
    (tmp_path / "sklearn.py").write_text("import builtins\nbuiltins.planted = True\n")
    with finding(UserModule(tmp_path / "model.py", tmp_path).pickled):
        sklearn.load(LoadSpec(ModelConfig("m"), 1, path, tmp_path))
    assert not planted()


def test_code_beside_a_file_that_is_not_pinned_is_not_run(
    tmp_path: Path, estimator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skops import io

    io.dump(estimator, path := tmp_path / "m.skops")
    (tmp_path / "sklearn.py").write_text("import builtins\nbuiltins.planted = True\n")
    monkeypatch.delattr("sklearn.linear_model._logistic.LogisticRegression")  # as in another version
    with pytest.raises(LoadFailed, match=r"^m\.skops is damaged or not an estimator: .*LogisticRegression"):
        sklearn.load(LoadSpec(ModelConfig("m"), 1, path, tmp_path))
    assert not planted()
