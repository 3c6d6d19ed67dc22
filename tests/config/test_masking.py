import json

import pytest

from batchgen.config.masking import masked


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
