import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ellm
from ellm import errors

REPOSITORY = Path(__file__).resolve().parents[2]


def test_importing_the_package_is_light():
    code = "import ellm, sys; print(ellm.__version__, *sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, *modules = done.stdout.split()
    assert version == ellm.__version__
    assert [name for name in modules if name.startswith("ellm.")] == []
    assert not {"numpy", "tokenizers", "jinja2"} & set(modules)


def test_every_public_name_can_be_had():
    for name in ellm.__all__:
        assert getattr(ellm, name) is not None
    assert set(ellm.__all__) <= set(dir(ellm))


def test_every_error_is_public():
    tree = {name for name in vars(errors) if name.endswith("Error")}
    assert tree == {name for name in ellm.__all__ if name.endswith("Error")}
    assert all(issubclass(getattr(ellm, name), ellm.EllmError) for name in tree)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Llm'"):
        ellm.Llm  # noqa: B018


def test_version_is_that_of_the_project_file():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["version"] == ellm.__version__
