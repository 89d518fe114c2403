"""The pages that delete a campaign, an import or a model, and the one that restores it."""

from __future__ import annotations

import re
import shutil
from html import unescape
from pathlib import Path

import httpx
from sqlalchemy import Engine

from farm.api.access import Access
from farm.measurement import Source
from farm.web.app import make_app
from farm.web.security import Policy
from support.page_samples import imported
from support.visiting import visitor, words


def test_a_campaign_is_deleted_after_a_question_and_restored(browser_like: httpx.Client, filled: int) -> None:
    asked = browser_like.get("/campaigns/small/delete").text
    assert "campaign small (" in words(asked)
    assert "12 jobs, 2 rows" in words(asked)
    assert "Cancel its 9 open jobs" in words(asked)
    assert "small has 9 open jobs" in words(browser_like.post("/campaigns/small/delete").text)
    digest = re.search(r"/campaigns/(\w+)/delete", asked)
    assert digest is not None
    gone = browser_like.post(f"/campaigns/{digest[1]}/delete", data={"cancel": "true"}).text
    assert "Deleted. You can restore it below" in words(gone)
    assert "by the web page" in words(gone)
    assert browser_like.get("/campaigns/small").status_code == 404
    whole = re.search(r'name="name" value="(\w+)"', gone)
    assert whole is not None
    back = words(browser_like.post("/deleted/restore", data={"kind": "campaign", "name": whole[1]}).text)
    assert "Restored." in back
    assert "Nothing was deleted." in back
    assert "cancelled" in words(browser_like.get("/campaigns/small").text)


def test_an_import_is_deleted_after_its_dependents_are_shown_and_restored(
    browser_like: httpx.Client, engine: Engine
) -> None:
    # Of the source that the registered model was trained on, so that the model is among the dependents.
    imported(engine, content="3fa94c0e11d2ab47", file="elsewhere.parquet", rows=3, source=Source.MEASURED)
    listed = browser_like.get("/devices").text
    (confirmation,) = re.findall(r'href="(/imports/[^"]+/delete)"', listed)
    assert confirmation == "/imports/3fa94c0e11d2ab47/delete"
    asked = browser_like.get(confirmation).text
    assert "import elsewhere.parquet (3fa94c0e11d2): 3 rows." in words(asked)
    assert "gemm-forest-nvidia-h200/1 = champion" in words(asked), "models that may have been trained on its rows"
    assert "GPU-elsewhere" in listed, "nothing is deleted before the confirmation"
    (action,) = re.findall(r'<form method="post" action="(/imports[^"]+)"', asked)
    gone = browser_like.post(action).text
    assert "Deleted. You can restore it below" in words(gone)
    assert "GPU-elsewhere" not in browser_like.get("/devices").text
    assert browser_like.get(confirmation).status_code == 404
    assert "Restored." in words(_restored(browser_like, gone))
    assert "GPU-elsewhere" in browser_like.get("/devices").text


def test_versions_of_a_model_are_deleted_after_their_dependents_are_shown_and_restored(
    access: Access, registry_with_a_model: Path, tmp_path: Path
) -> None:
    copied = shutil.copyfile(registry_with_a_model / "mlflow.db", tmp_path / "mlflow.db")
    settings = access.settings.model_copy(update={"mlflow_tracking_uri": f"sqlite:///{copied}"})
    own = Access(settings, who="test", opened=access.session)
    with visitor(make_app(own, policy=Policy(tokens=False))) as client:
        page = client.get("/models/nvidia-h200").text
        (confirmation,) = re.findall(r'href="(/models/[^"]+/delete\?[^"]+)"', page)
        asked = client.get(unescape(confirmation)).text
        assert "gemm-forest-nvidia-h200 version 1" in words(asked)
        assert "No earlier champion is left" in words(asked)
        assert client.get("/models/nvidia-h200").status_code == 200, "nothing is deleted before the confirmation"
        (action,) = re.findall(r'<form method="post" action="(/models[^"]+)"', asked)
        (version,) = re.findall(r'name="version" value="([^"]+)"', asked)
        gone = client.post(action, data={"version": version}).text
        assert "gemm-forest-nvidia-h200/1" in words(gone)
        assert client.get("/models/nvidia-h200").status_code == 404
        assert "Restored." in words(_restored(client, gone))
        assert "champion" in words(client.get("/models/nvidia-h200").text)
        everything = client.get("/models/nvidia-h200/delete").text
        assert 'name="version"' not in everything
        assert client.post("/models/gemm-forest-nvidia-h200/delete").status_code == 200
        assert client.get("/models/nvidia-h200").status_code == 404


def _restored(client: httpx.Client, deleted: str) -> str:
    """The page after pressing the first Restore button of the list of deletions."""
    form = re.search(r'name="kind" value="(\w+)"><button name="name" value="([^"]+)"', deleted)
    assert form is not None
    return client.post("/deleted/restore", data={"kind": form[1], "name": form[2]}).text
