import json

import pytest

from batchgen.config.masking import masked, masked_override, masked_url


@pytest.mark.parametrize(
    "key", ["key", "api_key", "API_KEY", "apikey", "hf_token", "secret", "db-password", "authToken"]
)
def test_values_of_secret_keys_are_masked(key):
    assert masked({"a": [{key: "hunter2"}]}) == {"a": [{key: "***"}]}


@pytest.mark.parametrize("key", ["max_tokens", "monkey", "stop_token_ids", "keys", "tokenizer"])
def test_other_keys_are_kept(key):
    assert masked({key: "x"}) == {key: "x"}


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("https://me:hunter2@host/x", "https://***@host/x"),
        ("s3://b/x?access_key=hunter2&region=eu", "s3://b/x?access_key=***&region=eu"),
        ("mail me@host", "mail me@host"),
    ],
)
def test_credentials_in_urls_are_masked(url, safe):
    assert masked([url]) == [safe]


def test_a_masked_job_is_json_with_the_keys_of_the_file(load):
    job = load(
        input={"paths": ["s3://me:hunter2@bucket/x.jsonl"]},
        model={"name": "x", "extra": {"hf_token": "hunter2"}},
    )
    text = json.dumps(job.masked())
    assert "hunter2" not in text
    assert job.masked()["output"]["json"] is False


@pytest.mark.parametrize("key", ["ping_url", "webhook_url", "pingurl"])
def test_only_the_host_is_kept_of_a_url_that_is_a_secret(key):
    value = {"notify": {key: "https://hooks.example:8443/services/hunter2?a=hunter2"}}
    assert masked(value) == {"notify": {key: "https://hooks.example:8443/***"}}


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("https://host", "https://host/***"),
        ("https://me:hunter2@host/x", "https://host/***"),
        ("https://host?hunter2", "https://host/***"),
        ("hunter2", "***"),
        ("", "***"),
    ],
)
def test_a_secret_url_shows_its_host_at_most(url, safe):
    assert masked_url(url) == safe


@pytest.mark.parametrize(
    ("override", "safe"),
    [
        ("notify.ping_url=https://host/hunter2", "notify.ping_url=https://host/***"),
        (
            "notify={ping_url: https://a/hunter2, webhook_url: 'https://b/hunter2'}",
            "notify={ping_url: https://a/***, webhook_url: 'https://b/***'}",
        ),
        ("notify.timeout=5", "notify.timeout=5"),
        ("model.extra.hf_token=hunter2", "model.extra.hf_token=***"),
        ("input.paths=s3://bucket/x", "input.paths=s3://bucket/x"),
        ("sampling.max_tokens=64", "sampling.max_tokens=64"),
    ],
)
def test_overrides_are_shown_without_secrets(override, safe):
    assert masked_override(override) == safe
