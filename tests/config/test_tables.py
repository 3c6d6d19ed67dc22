import json
import subprocess
import sys
from pathlib import Path

import pytest

from batchgen.config.models import SamplingConfig

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "batchgen" / "config" / "tables"


def test_every_field_of_sampling_params_is_a_key_or_is_refused_with_a_reason():
    fields = set(json.loads((TABLES / "sampling_params.json").read_text("utf-8"))["fields"])
    own = set(SamplingConfig.model_fields) - {"json_schema"}
    assert own | set(SamplingConfig.refused) == fields
    assert not own & set(SamplingConfig.refused)


@pytest.mark.cpu
def test_the_tables_are_those_of_the_installed_vllm():
    run = subprocess.run(
        [sys.executable, "tools/vllm_tables.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
