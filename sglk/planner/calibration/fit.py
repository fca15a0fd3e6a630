"""Prices from measured steps: non-negative least squares of relative errors, judged by steps that were left out."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sglk.errors import RunError
from sglk.planner.calibration.fitted import FORMS, Fit, FitError, Point, bent
from sglk.planner.cost.features import Features

FOLDS = 5
FEWEST_POINTS = 8

Array = npt.NDArray[np.float64]


def fit(points: Sequence[Point], features: Features) -> Fit:
    """Return the prices of the form that predicts left-out points best; raises RunError for too few points.

    Every fold leaves out each FOLDS-th shape in order of kind and size, so that what is left out lies between others.
    """
    if len(points) < FEWEST_POINTS:
        raise RunError(f"{len(points)} steps were measured, and prices need {FEWEST_POINTS}; allow more time")
    ordered = sorted(points, key=lambda point: (point.shape.kind, point.seconds))
    found = [_fit_form(form, ordered, features) for form in FORMS]
    return min(found, key=lambda each: each.error.median + each.error.p90)


def solve(points: Sequence[Point], features: Features) -> dict[str, float]:
    """Return the prices, none below 0, with the least sum of squared relative errors."""
    # scipy takes longer to import than everything else here.
    from scipy.optimize import nnls

    rows = [features.quantities(point.shape) for point in points]
    names = sorted({name for row in rows for name in row})
    seconds = np.array([point.seconds for point in points])
    matrix = np.array([[row.get(name, 0.0) for name in names] for row in rows]) / seconds[:, None]
    scales = matrix.max(axis=0)
    solution: Array = nnls(matrix / scales, np.ones(len(points)))[0]
    return {name: float(price) for name, price in zip(names, solution / scales, strict=True) if price > 0}


def predict(points: Sequence[Point], features: Features, prices: Mapping[str, float]) -> Array:
    """Return the seconds of each point by its prices."""
    rows = [features.quantities(point.shape) for point in points]
    return np.array([sum(value * prices.get(name, 0.0) for name, value in row.items()) for row in rows])


def _fit_form(form: str, points: Sequence[Point], features: Features) -> Fit:
    tokens, lines = max(point.shape.tokens for point in points), max(point.shape.logits for point in points)
    features = bent(features, form, tokens, lines)
    errors = np.zeros(len(points))
    for fold in range(FOLDS):
        held_out = points[fold::FOLDS]
        shown = [point for index, point in enumerate(points) if index % FOLDS != fold]
        seconds = np.array([point.seconds for point in held_out])
        predicted = predict(held_out, features, solve(shown, features))
        errors[fold::FOLDS] = abs(predicted / seconds - 1)
    kinds = np.array([point.shape.kind for point in points])
    return Fit(
        form,
        tokens,
        lines,
        solve(points, features),
        FitError(*(round(float(np.quantile(errors, share)), 4) for share in (0.5, 0.9, 1.0))),
        {str(kind): round(float(np.median(errors[kinds == kind])), 4) for kind in sorted(set(kinds))},
    )
