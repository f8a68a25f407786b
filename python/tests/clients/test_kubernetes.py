"""Check the manifests in docs/guides/kubernetes.md against the schemas of the Kubernetes API.

`check.sh` does not install the packages that have the schemas; without them, the tests are skipped.
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


def documents(name: str) -> list[Any]:
    """Return the objects of one of the page's blocks, found by its first line or its first key."""
    yaml = pytest.importorskip("yaml", reason="the package `pyyaml` is not installed")
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (block,) = (each for each in blocks if each.lstrip().startswith((f"# {name}\n", f"{name}:")))
    return list(yaml.safe_load_all(textwrap.dedent(block)))


def manifests() -> tuple[list[Any], dict[str, Any]]:
    """Return the job's objects, and the keys of the container that starts several ranks."""
    (part,) = documents("command")
    return documents("job.yaml"), part


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


@pytest.mark.parametrize(
    ("name", "model"),
    [("jobset.yaml", "JobsetV1alpha2JobSet"), ("trainjob.yaml", "TrainerV1alpha1TrainJob")],
)
def test_the_manifests_of_kubeflow_are_valid(name: str, model: str) -> None:
    """The models reject wrong types and drop unknown keys, so their output lacks unknown keys."""
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="the package `kubeflow-trainer-api` is not installed"
    )
    (manifest,) = documents(name)
    kind = getattr(models, model)
    assert kind.from_dict(manifest).to_dict() == manifest
    manifest["spec"]["replicatedJob"] = []
    assert kind.from_dict(manifest).to_dict() != manifest


def test_the_pods_of_a_jobset_find_rank_0() -> None:
    (job_set,) = documents("jobset.yaml")
    name, (job,) = job_set["metadata"]["name"], job_set["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert job_set["spec"]["network"]["enableDNSHostnames"] is True
    assert variables["RINGFOLD_ADDR"].startswith(f"{name}-{job['name']}-0-0.{name}:")
    assert variables["RINGFOLD_WORLD_SIZE"] == str(spec["completions"]) == str(spec["parallelism"])


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
