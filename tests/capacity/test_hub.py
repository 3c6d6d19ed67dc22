"""A model is found in its directory or in the hub's cache, and nothing is fetched unasked."""

import pytest

from batchgen.capacity.hub import find_model_folder, hub_problem
from batchgen.errors import JobFileError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put(cache, commit="abc123", ref="main"):
    model = cache / "models--org--name"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / ref).write_text(commit)
    snapshot = model / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    return snapshot


def test_a_directory_is_taken_as_it_is(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert find_model_folder(str(tmp_path)) == tmp_path


def test_a_directory_without_config_is_no_model(tmp_path):
    with pytest.raises(JobFileError, match=r"holds no config\.json"):
        find_model_folder(str(tmp_path))


@pytest.mark.parametrize("name", ["./missing", "/missing/model", "a/b/c"])
def test_a_path_is_no_hub_id(cache, name):
    with pytest.raises(JobFileError, match="no such directory"):
        find_model_folder(name, may_download=True)


def test_a_hub_model_is_found_in_the_cache(cache):
    snapshot = put(cache)
    assert find_model_folder("org/name") == snapshot


@pytest.mark.parametrize("revision", ["v2", "abc123"])
def test_a_revision_is_a_branch_or_a_commit(cache, revision):
    snapshot = put(cache, ref="v2")
    assert find_model_folder("org/name", revision) == snapshot


def test_a_hub_model_that_is_not_here_says_how_to_get_it(cache):
    with pytest.raises(JobFileError, match=r"hf download org/name.*--config FILE"):
        find_model_folder("org/name")


def test_offline_nothing_is_fetched(cache, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(JobFileError, match="HF_HUB_OFFLINE is set"):
        find_model_folder("org/name", may_download=True)


def test_a_hub_that_does_not_answer_is_found_out_at_once(monkeypatch):
    for name in ("HF_HUB_OFFLINE", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert "127.0.0.1 cannot be reached" in hub_problem()
