"""Audit the installed packages: write a bill of materials (bom.json, CycloneDX) and look up known vulnerabilities.

    make audit

The exit status is 1 if a package has a known vulnerability. Where no advisory service answers, that is said in one line
and the status is 0.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

Json = dict[str, Any]
BOM = Path("bom.json")
PIP_AUDIT = ("-m", "pip_audit", "--local", "--skip-editable", "--format", "json", "--progress-spinner", "off")


def bill_of_materials(packages: Iterable[Distribution]) -> Json:
    """Return the packages, their licences and what each needs of the others, as CycloneDX 1.6. No time, no machine."""
    found = {canonicalize_name(one.metadata["Name"]): one for one in packages if one.metadata["Name"]}
    urls = {name: f"pkg:pypi/{name}@{found[name].version}" for name in sorted(found)}
    dependencies = [{"ref": url, "dependsOn": _needs(found[name], urls)} for name, url in urls.items()]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, ' '.join(urls.values()))}",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "aag", "bom-ref": "aag"}},
        "components": [_component(found[name], name, url) for name, url in urls.items()],
        "dependencies": dependencies,
    }


def _component(package: Distribution, name: str, url: str) -> Json:
    component = {"type": "library", "bom-ref": url, "name": name, "version": package.version, "purl": url}
    if expression := package.metadata.get("License-Expression"):
        return {**component, "licenses": [{"expression": expression}]}
    names = [line.rpartition(" :: ")[2] for line in package.metadata.get_all("Classifier", []) if "License ::" in line]
    return {**component, "licenses": [{"license": {"name": one}} for one in names]} if names else component


def _needs(package: Distribution, urls: dict[str, str]) -> list[str]:
    needed = set()
    for line in package.requires or ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            needed.add(urls.get(canonicalize_name(requirement.name), ""))
    return sorted(needed - {""})


def judge(report: str) -> tuple[list[str], int]:
    """Return what to print about a report of pip-audit, and the exit status."""
    try:
        packages = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        packages = []
    checked = [one for one in packages if "vulns" in one]
    if not checked:
        return ["vulnerabilities: not checked, because no advisory service could be reached"], 0
    lines = [
        f"{one['name']} {one['version']}: {flaw['id']}; fixed in {', '.join(flaw['fix_versions']) or 'no version yet'}"
        for one in checked
        for flaw in one["vulns"]
    ]
    skipped = len(packages) - len(checked)
    lines.append(
        f"vulnerabilities: {len(lines)} known in {len(checked)} packages" + f"; {skipped} not checked" * bool(skipped)
    )
    return lines, int(len(lines) > 1)


def main() -> int:
    content = bill_of_materials(distributions())
    BOM.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"bill of materials: {len(content['components'])} packages, in {BOM}")
    found = subprocess.run([sys.executable, *PIP_AUDIT], capture_output=True, text=True)
    lines, status = judge(found.stdout)
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
