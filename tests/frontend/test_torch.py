"""torch programs come in through torch's exporter; without torch the error names the extra."""

import builtins
import importlib

import numpy as np
import pytest

from tvmstack.core.errors import ModelError, SetupError, UsageError
from tvmstack.frontend import load_model, torch_program

pytestmark = pytest.mark.null


@pytest.fixture
def torch():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed (the extra `torch`)")
    return importlib.import_module("torch")


class ExportedProgram:
    """Looks like torch's."""

    __module__ = "torch.export.exported_program"


def test_without_torch_the_error_names_the_extra(monkeypatch, tmp_path):
    def absent(name: str) -> object:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(torch_program.importlib, "import_module", absent)
    with pytest.raises(SetupError, match=r"tvmstack\[torch\]"):
        load_model(ExportedProgram())
    (tmp_path / "p.pt2").write_bytes(b"x")
    with pytest.raises(SetupError, match=r"tvmstack\[torch\]"):
        load_model(tmp_path / "p.pt2")


def test_a_missing_program_file_is_no_question_of_torch(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        load_model(tmp_path / "absent.pt2")


def test_sample_inputs_are_for_modules_only(tmp_path):
    with pytest.raises(UsageError, match=r"torch\.nn\.Module only"):
        load_model(tmp_path / "m.onnx", sample_inputs=(1,))


def test_looking_at_a_source_does_not_import_torch(monkeypatch):
    real = builtins.__import__

    def guarded(name, *args, **kwargs):
        assert name.split(".")[0] != "torch"
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", guarded)
    assert not torch_program.is_torch_object(b"bytes")
    assert torch_program.is_torch_object(ExportedProgram())


def test_a_module_and_its_exported_program_give_the_same_numbers(torch, tmp_path):
    from tests.graph.build import run
    from tvmstack.frontend import save_onnx
    from tvmstack.graph import repair

    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    module.train()
    x = torch.randn(1, 3, 8, 8)
    from_module = repair(load_model(module, sample_inputs=(x,)))
    assert module.training
    module.eval()
    program = torch.export.export(module, (x,))
    torch.export.save(program, tmp_path / "p.pt2")
    wanted = module(x).detach().numpy()
    for model in (from_module, repair(load_model(program)), repair(load_model(tmp_path / "p.pt2"))):
        data = save_onnx(model, tmp_path / "m.onnx").read_bytes()
        np.testing.assert_allclose(run(data, {model.inputs[0].name: x.numpy()})[0], wanted, rtol=1e-4, atol=1e-5)
        assert len(model.digest) == 64


def test_a_module_needs_sample_inputs(torch):
    with pytest.raises(UsageError, match="needs sample_inputs"):
        load_model(torch.nn.ReLU())


def test_a_module_that_cannot_be_exported_is_a_model_error(torch):
    class Picky(torch.nn.Module):
        def forward(self, x):
            return x if x.sum().item() > 0 else -x

    with pytest.raises(ModelError, match="torch cannot export Picky"):
        load_model(Picky(), sample_inputs=(torch.ones(2),))
