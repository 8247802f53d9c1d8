"""Checks the text of metrics with the parser of Prometheus' own Python client.

usage: check_metrics.py SYNCRUN PROGRAM    with PROGRAM the sample api_metrics
"""

import subprocess
import sys
import tempfile
from pathlib import Path

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    print("skipped: no prometheus_client (Debian: python3-prometheus-client, PyPI: prometheus-client)")
    sys.exit(0)

CALLS = 100
ROW_BYTES = 8
ROWS_PER_RANK = 500
PHASES = {"inputs", "function", "collective", "waiting", "reduction", "idle", "other"}


def main(syncrun: str, program: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "metrics.prom")
        subprocess.run([syncrun, "--quiet", "-n", "2", "--metrics", str(path), program], check=True, stdout=subprocess.DEVNULL)
        families = {family.name: family for family in text_string_to_metric_families(path.read_text())}

    def by_rank(name: str) -> dict[str, float]:
        return {sample.labels["rank"]: sample.value for sample in families[name].samples}

    assert by_rank("syncrun_calls") == {"0": CALLS, "1": CALLS}, by_rank("syncrun_calls")
    assert set(by_rank("syncrun_input_bytes").values()) == {CALLS * ROWS_PER_RANK * ROW_BYTES}
    phases = {sample.labels["phase"] for sample in families["syncrun_phase_seconds"].samples}
    assert phases == PHASES, phases
    for name, family in families.items():
        assert name.startswith("syncrun_") and family.documentation, name
        assert family.type == ("gauge" if name == "syncrun_build_info" else "counter"), name
        for sample in family.samples:
            assert sample.value >= 0, sample
            assert name == "syncrun_build_info" or {"rank", "device", "node"} <= sample.labels.keys(), sample
    print(f"{len(families)} families of metrics")


main(*sys.argv[1:])
