"""Checkpoints to scan, written by the libraries that write them in earnest, and a way to scan one in a line."""

from __future__ import annotations

from pathlib import Path

from steadygrad.checkup.scan.scan import scan
from steadygrad.records.checks.scan import FileScan, ScanReport


def scanned(path: Path) -> FileScan:
    """The scan of a path that holds one file."""
    report = scan([path])
    assert len(report.files) == 1
    return report.files[0]


def codes(found: FileScan | ScanReport) -> list[str]:
    """The codes of the rules that spoke, in order."""
    if isinstance(found, ScanReport):
        return sorted(code for file in found.files for code in codes(file))
    return [finding.code for finding in found.findings]
