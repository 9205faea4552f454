"""The chart: each way to use it renders to manifests of the Kubernetes API, with a valid configuration.

`helm` renders; helm/check, a program with the types of the API, decodes strictly.
"""

import re
import secrets
import shutil
import unittest

from support import PackageTest, project, run

CHART = project.ROOT / "packaging/helm/penstock"
CHECK = project.ROOT / "packaging/helm/check"
HELM = project.ROOT / "packaging/bin/helm"
KUBERNETES = "1.34.0"
WAYS = {
    "defaults": [],
    "scaled": ["autoscaling.enabled=true"],
    "workers": [
        "workers.enabled=true",
        "workers.autoscaling.enabled=true",
        "replicas=3",
        "redis.existingSecret=redis",
    ],
    "reachable": [
        "ingress.enabled=true",
        "ingress.hosts={shop.test}",
        "ingress.className=nginx",
        "networkPolicy.egress[0].ports[0].port=5432",
        "networkPolicy.clients[0].podSelector.matchLabels.app=gateway",
    ],
    "private": ["imagePullSecrets[0].name=pull", "nodeSelector.disk=ssd", "image.tag=1.2.3"],
}


@unittest.skipUnless(HELM.exists() and shutil.which("go"), "helm or go is missing")
class Helm(PackageTest):
    @classmethod
    def setUpClass(cls):
        cls.checker = project.PACKAGES / "work/helm-check"
        run("go", "build", "-o", cls.checker, ".", cwd=CHECK, timeout=600)

    def render(self, settings):
        words = [word for setting in settings for word in ("--set", setting)]
        return run(HELM, "template", "shop", CHART, "--kube-version", KUBERNETES, *words)

    def check(self, text, code=0):
        with self.write("all.yaml", text).open() as manifests:
            return run(self.checker, code=code, stdin=manifests)

    def test_each_way_to_use_it_is_valid(self):
        run(HELM, "lint", "--strict", CHART, "--kube-version", KUBERNETES)
        for name, settings in WAYS.items():
            with self.subTest(name):
                self.assertRegex(self.check(self.render(settings)), r"^\d+ manifests$")

    def test_the_check_finds_a_misspelled_field_and_an_unknown_kind(self):
        text = self.render([])
        for wrong, right in (("readinesProbe", "readinessProbe"), ("Deploymant", "Deployment")):
            with self.subTest(wrong):
                self.assertIn(wrong, self.check(text.replace(right, wrong), code=1))

    def test_pods_have_no_rights_and_time_to_drain(self):
        for name, settings in WAYS.items():
            with self.subTest(name):
                text = self.render(settings)
                pods = text.count("containers:")
                for line in (
                    "runAsNonRoot: true",
                    "readOnlyRootFilesystem: true",
                    "allowPrivilegeEscalation: false",
                    "capabilities: { drop: [ALL] }",
                    "automountServiceAccountToken: false",
                    "readinessProbe:",
                    "livenessProbe:",
                ):
                    self.assertEqual(text.count(line), pods, line)
                # The pause before the stop, the server's own time, and a margin.
                self.assertIn("terminationGracePeriodSeconds: 35", text)
                self.assertIn('shutdown_timeout = "20s"', text)

    def test_scaling_asks_for_metrics_that_the_server_has(self):
        sources = [project.ROOT / "crates" / name for name in ("apps", "proxy", "status")]
        known = "".join(
            path.read_text() for source in sources for path in source.rglob("src/**/*.rs")
        )
        text = self.render(WAYS["scaled"]) + self.render(WAYS["workers"])
        metrics = set(re.findall(r"penstock_((?:app|upstream)_\w+)", text))
        self.assertEqual(len(metrics), 2)
        for metric in metrics:
            self.assertRegex(known, rf"gauge {metric} =")

    def test_the_configuration_is_good(self):
        key = self.write("key", secrets.token_urlsafe(32))
        for name, settings in WAYS.items():
            with self.subTest(name):
                found = re.search(
                    r"  penstock\.toml: \|\n((?:    .*\n|\n)+)", self.render(settings)
                )
                text = "\n".join(line[4:] for line in found[1].splitlines())
                text = text.replace("/run/penstock/join/key", str(key))
                text = text.replace('root = "/srv"', f'root = "{self.folder}"')
                file = self.write("penstock.toml", text)
                key.chmod(0o600)
                output = run(
                    project.binary(project.GLIBC), "check", "--config-only", "-c", file,
                    env={"PENSTOCK_REDIS": "redis://127.0.0.1:6379/0"},
                )  # fmt: skip
                self.assertIn("good", output)
