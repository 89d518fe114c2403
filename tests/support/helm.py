"""The Helm chart: where it is, and values for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "gemm-farm"

SERVICES = {
    "migrate": "migrate",
    "coordinator": "coordinator",
    "web": "web",
    "trainer": "trainer",
    "builder": "builder",
    "cpu-worker": "worker-cpu",
    "gpu-worker": "worker-gpu",
}
"""The service of Compose that a template is."""

ALL: dict[str, Any] = {
    "image": {"repository": "registry.example:5000/farm", "tag": "0.1.0", "pullSecrets": ["pull"]},
    "certificates": "farm-ca",
    "settings": {"FARM_LEASE_SECONDS": "60", "FARM_OTEL_ENDPOINT": "http://collector.monitoring:4318"},
    "metrics": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
    "network": {"postgres": {"to": [{"ipBlock": {"cidr": "10.0.0.5/32"}}]}, "redis": {"port": 6380}},
    "web": {
        "proxy": "10.0.0.0/8",
        "from": [{"namespaceSelector": {"matchLabels": {"name": "proxy"}}}],
        "ingress": {"enabled": True, "className": "nginx", "host": "farm.example", "tlsSecret": "farm-tls"},
        "oidc": {
            "issuer": "https://id.example/realms/gpu",
            "clientId": "gemm-farm",
            "publicUrl": "https://farm.example",
            "roles": "gemm-admins=admin,*=read",
        },
    },
    "builder": {"enabled": True},
    "gpuWorker": {"gpus": 8, "deviceLocks": "/var/lock"},
    "cpuWorker": {"enabled": True},
}
"""Values that turn everything on."""
