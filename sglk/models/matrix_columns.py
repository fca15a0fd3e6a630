"""Some inputs of a quantised matrix: what a rank has of one whose inputs are split."""

from dataclasses import replace

from sglk.backends.quantised import QuantisedMatrix


def obstacle(matrix: QuantisedMatrix, inputs: int) -> str | None:
    """Return what keeps `matrix` from being cut into pieces of so many inputs."""
    if matrix.order_E is not None:
        return "an order of columns of its own"
    if matrix.scales_OG.shape[1] > 1 and inputs % matrix.group_size:
        return f"groups of {matrix.group_size} inputs"
    if matrix.four_bit and inputs % 2:
        return "pairs of inputs"
    return None


def columns(matrix: QuantisedMatrix, start: int, end: int) -> QuantisedMatrix:
    """Return the inputs from `start` to before `end`, which nothing is an `obstacle` to."""
    groups = slice(None)
    if matrix.scales_OG.shape[1] > 1:
        groups = slice(start // matrix.group_size, end // matrix.group_size)
    per_byte = 2 if matrix.four_bit else 1
    return replace(
        matrix,
        values=matrix.values[:, start // per_byte : end // per_byte],
        scales_OG=matrix.scales_OG[:, groups],
        zeros_OG=None if matrix.zeros_OG is None else matrix.zeros_OG[:, groups],
        group_size=min(matrix.group_size, end - start),
    )
