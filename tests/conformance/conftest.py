"""What all conformance tests share: weight images that are gone after the module."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELLM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
