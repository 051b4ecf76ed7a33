"""`make audit`: the bill of materials is complete, and only a known vulnerability fails."""

import json
from importlib.metadata import distributions

import pytest

import audit


def test_the_bill_names_every_package_and_what_it_needs():
    bill = audit.bill_of_materials(distributions())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    components = {one["name"]: one for one in bill["components"]}
    assert {"torch", "numpy", "pillow", "safetensors"} <= components.keys()
    assert components["numpy"]["purl"].startswith("pkg:pypi/numpy@")
    assert components["numpy"]["licenses"]
    references = [one["bom-ref"] for one in bill["components"]]
    assert len(set(references)) == len(references) == len(bill["dependencies"])
    needs = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    assert components["numpy"]["purl"] in needs[components["torchvision"]["purl"]]
    assert {each for every in needs.values() for each in every} <= set(references)
    assert audit.bill_of_materials(distributions()) == bill  # the same packages give the same file
    assert json.loads(json.dumps(bill)) == bill


FINE = {"name": "a", "version": "1.0", "vulns": []}
FLAWED = {"name": "b", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1", "3.0"]}]}
UNKNOWN = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "lines", "status"),
    [
        ([FINE], ["vulnerabilities: 0 known in 1 packages"], 0),
        (
            [FINE, FLAWED, UNKNOWN],
            ["b 2.0: PYSEC-1; fixed in 2.1, 3.0", "vulnerabilities: 1 known in 2 packages; 1 not checked"],
            1,
        ),
        ([UNKNOWN], ["vulnerabilities: not checked, because no advisory service could be reached"], 0),
    ],
)
def test_only_a_known_vulnerability_fails(packages, lines, status):
    assert audit.judge(json.dumps({"dependencies": packages})) == (lines, status)


@pytest.mark.parametrize("report", ["", "Connection refused", "[]", "{}", "null"])
def test_without_a_report_nothing_is_claimed(report):
    lines, status = audit.judge(report)
    assert "not checked" in lines[0]
    assert status == 0
