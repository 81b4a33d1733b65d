"""What `run` takes, in any memory layout, and what it refuses in words."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.make import TYPES
from tvmstack.core.errors import UsageError
from tvmstack.runtime import Session, load

pytestmark = pytest.mark.cpu
X = np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)


class Tensor:
    """Something that only speaks DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def off(offset: int) -> Callable[[np.ndarray], np.ndarray]:
    def make(array: np.ndarray) -> np.ndarray:
        raw = np.empty(array.nbytes + 128, np.uint8)
        start = -raw.ctypes.data % 64 + offset
        moved = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        moved[...] = array
        assert moved.ctypes.data % 64 == offset % 64
        return moved

    return make


def read_only(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


LAYOUTS: dict[str, Callable[[np.ndarray], Any]] = {
    **{f"offset {n}": off(n) for n in (0, 1, 2, 4, 16, 32, 48)},
    "fortran": np.asfortranarray,
    "every other": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "backwards": lambda a: a[::-1].copy()[::-1],
    "broadcast": lambda a: np.broadcast_to(a, a.shape),
    "read-only": read_only,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "dlpack": Tensor,
    "dlpack, strided": lambda a: Tensor(np.asfortranarray(a)),
    "dlpack, unaligned": lambda a: Tensor(off(4)(a)),
    "subclass": lambda a: a.view(np.recarray),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["x", "large"])
def test_any_memory_layout_gives_the_same_answer(layout: str, name: str, dense: Path, types: Path) -> None:
    if name == "x":
        with load(dense) as session:
            want = session.run({"x": X})["y"]
            got = session.run({"x": LAYOUTS[layout](X)})["y"]
        assert got.tobytes() == want.tobytes()
    else:
        feeds = feeds_of_types()
        with load(types) as session:
            got = session.run({**feeds, "large": LAYOUTS[layout](feeds["large"])})["same"]
        np.testing.assert_array_equal(got, feeds["large"])


def feeds_of_types() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    feeds: dict[str, Any] = {}
    for name in TYPES:
        dtype = {"b": "?", "i8": "i1", "u8": "u1"}.get(name, name[0] + str(int(name[1:]) // 8 if name != "b" else 1))
        feeds[name] = rng.integers(0, 2 if name == "b" else 50, (2, 3)).astype(dtype)
    feeds["scalar"] = np.float32(1.5)
    feeds["large"] = rng.standard_normal((64, 256)).astype(np.float32)
    return feeds


def test_every_type_goes_in_and_comes_out(types: Path) -> None:
    feeds = feeds_of_types()
    with load(types) as session:
        outputs = session.run(feeds)
    for name in TYPES:
        want = ~feeds[name] if name == "b" else feeds[name] + feeds[name]
        np.testing.assert_array_equal(outputs[f"out_{name}"], want)
        assert outputs[f"out_{name}"].dtype == want.dtype
    assert outputs["square"].shape == ()
    assert outputs["square"] == np.float32(2.25)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.array(2, np.float32), np.array(2, ">f4")])
def test_a_number_will_do_for_an_input_without_dims(value: Any, types: Path) -> None:
    with load(types) as session:
        assert session.run({**feeds_of_types(), "scalar": value})["square"] == 4


def test_an_output_that_is_an_input_is_the_callers_own(types: Path) -> None:
    feeds = {name: off(0)(np.asarray(value)) for name, value in feeds_of_types().items()}
    kept = feeds["large"].copy()
    with load(types) as session:
        same = session.run(feeds)["same"]
        same[...] = 7
        np.testing.assert_array_equal(feeds["large"], kept)
        np.testing.assert_array_equal(session.run(feeds)["same"], kept)


def test_outputs_stay_as_they_are(session: Session) -> None:
    first = session.run({"x": X})["y"]
    kept = first.copy()
    for scale in range(20):
        session.run({"x": X * scale})
    session.close()
    np.testing.assert_array_equal(first, kept)
    first += 1  # writable


def test_inputs_are_left_as_they_were(session: Session) -> None:
    x = off(0)(X)
    session.run({"x": x})
    np.testing.assert_array_equal(x, X)


def test_torch_tensors_are_taken(session: Session) -> None:
    torch = pytest.importorskip("torch")
    want = session.run({"x": X})["y"]
    tensor = torch.from_numpy(X.copy())
    for value in (tensor, tensor.T.contiguous().T):
        assert session.run({"x": value})["y"].tobytes() == want.tobytes()
    with pytest.raises(UsageError, match="cannot be read through DLPack"):
        session.run({"x": tensor.requires_grad_()})


REFUSED: dict[str, tuple[Any, str]] = {
    "nothing": ({}, "input 'x' is missing"),
    "another name": ({"xs": X}, r"no input is called 'xs' \(did you mean x\?\); input 'x' is missing"),
    "one too many": ({"x": X, "z": X}, r"no input is called 'z'"),
    "no mapping": (X, r"inputs must be a mapping from names to arrays \(x\), got ndarray"),
    "shape": ({"x": X[:, :31]}, r"input 'x' must be float32 \[2, 32\], got float32 \[2, 31\]"),
    "rank": ({"x": X[None]}, r"input 'x' must be float32 \[2, 32\], got float32 \[1, 2, 32\]"),
    "dtype": ({"x": X.astype(np.float64)}, r"got float64 \[2, 32\]; cast it, for example with .astype\('float32'\)"),
    "integers": ({"x": X.astype(np.int32)}, "got int32"),
    "a list": ({"x": X.tolist()}, "must be a numpy array or a DLPack tensor, got list"),
    "text": ({"x": "cat.jpg"}, "got str"),
    "none": ({"x": None}, "got NoneType"),
    "objects": ({"x": X.astype(object)}, "got object"),
    "a masked array": ({"x": np.ma.masked_array(X, X > 0)}, "masked array; fill it first"),
    "a number": ({"x": 1.0}, r"must be float32 \[2, 32\], got float32 \[\]"),
    "dlpack, other dtype": ({"x": Tensor(X.astype(np.float64))}, "got float64"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_inputs_are_refused_in_a_sentence(case: str, session: Session) -> None:
    inputs, words = REFUSED[case]
    with pytest.raises(UsageError, match=words):
        session.run(inputs)
    assert session.run({"x": X})["y"].shape == (2, 8)


@pytest.mark.parametrize(("value", "words"), [(True, "got bool"), ("2", "got str"), (1j, "got complex")])
def test_a_number_of_another_kind_is_refused(value: Any, words: str, types: Path) -> None:
    with load(types) as session, pytest.raises(UsageError, match=words):
        session.run({**feeds_of_types(), "scalar": value})


def test_memory_that_ctypes_owns_is_taken(session: Session) -> None:
    raw = (ctypes.c_float * 64)(*X.reshape(-1))
    got = session.run({"x": np.frombuffer(raw, np.float32).reshape(2, 32)})["y"]
    assert got.tobytes() == session.run({"x": X})["y"].tobytes()
