"""Campaign files that come with the farm, found by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.cli.workload_options import campaign_file, campaign_text
from farm.errors import CampaignFileError

CAMPAIGNS = Path(__file__).parents[2] / "examples" / "campaigns"


def test_a_name_is_the_campaign_that_comes_with_the_farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = campaign_text(Path("quickstart"), families=None)
    assert found.text == (CAMPAIGNS / "quickstart.yaml").read_text()
    assert found.campaign(10**6).name == "quickstart"


def test_the_own_kernel_of_a_campaign_that_comes_with_the_farm_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert campaign_text(Path("own-kernel"), families=None).files


def test_a_file_goes_before_the_campaign_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quickstart").write_text("name: mine\n")
    assert campaign_file(Path("quickstart")) == Path("quickstart")
    for path in ("quickstart.yaml", "./campaigns/quickstart", "../quickstart", "/quickstart"):
        assert campaign_file(Path(path)) == Path(path)


def test_a_mistyped_name_is_answered_with_close_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CampaignFileError, match=r"quikstart: there is no such file.*did you mean quickstart"):
        campaign_file(Path("quikstart"))
    with pytest.raises(CampaignFileError, match="name the path of a campaign file"):
        campaign_file(Path("zzzzzz"))
