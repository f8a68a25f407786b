"""The manifests of docs/guides/kubernetes.md have the shapes of the API of Kubernetes.

The package is not among the environment's of `check.sh`; without it, the tests are skipped.
"""

import copy
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.deep

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "kubernetes.md"
VERSIONS = ["1.28", "1.32", "1.37"]


def manifests() -> tuple[list[Any], dict[str, Any]]:
    """The objects of the job, and what the page puts into the container for several ranks."""
    yaml = pytest.importorskip("yaml", reason="the package `pyyaml` is not installed")
    whole, part = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return list(yaml.safe_load_all(whole)), yaml.safe_load(textwrap.dedent(part))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_are_valid(version: str) -> None:
    schemas = pytest.importorskip(
        "kubernetes_validate", reason="the package `kubernetes-validate` is not installed"
    )
    (service, job), part = manifests()
    several = copy.deepcopy(job)
    several["spec"]["template"]["spec"]["containers"][0].update(part)
    for each in (service, job, several):
        schemas.validate(each, version, strict=True)
    job["spec"]["completion"] = job["spec"].pop("completions")
    with pytest.raises(schemas.ValidationError, match="completion"):
        schemas.validate(job, version, strict=True)


def test_the_pods_find_rank_0_by_the_service() -> None:
    (service, job), _ = manifests()
    pod = job["spec"]["template"]["spec"]
    name = service["metadata"]["name"]
    variables = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert pod["subdomain"] == name
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert variables["RINGFOLD_ADDR"].startswith(f"{job['metadata']['name']}-0.{name}:")
    assert variables["RINGFOLD_WORLD_SIZE"] == str(job["spec"]["completions"])
    assert job["spec"]["parallelism"] == job["spec"]["completions"]
