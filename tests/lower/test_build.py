"""What is read from a built executable."""

from __future__ import annotations

import pytest

from tvmstack.lower.build import _constant_pool

pytestmark = pytest.mark.null


def test_the_constant_pool_is_split_at_its_own_commas_only():
    stats = (
        'statistics:\n  Constant pool (# 6): [float32, "loc=param[0], R.Tensor((2, 8), dtype="float32")) ", '
        "shapetuple[64], shapetupl], [1, 2, 16], shapetuple[2, 5]]\n  Globals (#12): [main]\n"
    )
    pool = _constant_pool(stats)
    assert [pool[i] for i in (0, 2, 3, 4, 5)] == [
        "float32",
        "shapetuple[64]",
        "shapetuple[]",
        "[1, 2, 16]",
        "shapetuple[2, 5]",
    ]
