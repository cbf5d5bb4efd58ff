"""An HTTP client for the few requests that the driver of Kubernetes makes, with the API server's own words for errors.

Within a cluster it is a pod's service account; from outside, `kubectl proxy` authenticates for it.
"""

from collections.abc import Mapping
from pathlib import Path

import orjson
import urllib3
from urllib3.exceptions import HTTPError

from echo_queue.errors import ConfigError, Problem
from echo_queue.fleet.drivers.groups.group import Changed
from echo_queue.fleet.drivers.protocol import DriverError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MERGE = "application/merge-patch+json"
REASONS = {
    401: "give the pod the service account of the chart's controller",
    403: "give it the rights of docs/fleet.md, which the chart's controller has",
    404: "install the chart with controller.enabled and this pool, and name its release",
    429: "wait: it is asked again in the next turn",
}
SAID_MAX = 300


class KubernetesApi:
    """The API server at `url`, in one namespace. `token`, `authority`: files. The token is read anew each time."""

    def __init__(
        self, url: str, namespace: str, deadline_s: float, *, token: Path | None = None, authority: Path | None = None
    ) -> None:
        self._url = url.rstrip("/")
        self._namespace = namespace
        self._token = token
        trusted = str(authority) if authority else None
        self._http = urllib3.PoolManager(retries=False, timeout=deadline_s, ca_certs=trusted)

    def get(self, group: str, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """Returns the answer's JSON. `group`: such as "api/v1"; `path`: below the namespace."""
        return self._ask("GET", group, path, query=query)

    def patch(self, group: str, path: str, changes: object) -> None:
        """Merges the changes into an object.

        Raises `Changed` if its resourceVersion is not the one in `changes`, or if it is a pod that is gone.
        """
        self._ask("PATCH", group, path, body=orjson.dumps(changes), content=MERGE)

    def delete(self, group: str, path: str) -> None:
        """Deletes an object, gracefully. Raises `Changed` if it is a pod that is gone."""
        self._ask("DELETE", group, path)

    def _ask(
        self,
        method: str,
        group: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content: str = "application/json",
    ) -> bytes:
        headers = {"Accept": "application/json", "Content-Type": content}
        url = f"{self._url}/{group}/namespaces/{self._namespace}/{path}"
        try:
            if self._token:
                headers["Authorization"] = f"Bearer {self._token.read_text().strip()}"
            fields = dict(query) if query else None
            answer = self._http.request(method, url, body=body, fields=fields, headers=headers, redirect=False)
        except (HTTPError, OSError) as error:
            fix = "see whether the API server is up, and controller.api is its address"
            raise DriverError(Problem("kubernetes", f"{method} {path}: {error}", fix)) from None
        gone = answer.status == 404 and path.startswith("pods/")
        if answer.status == 409 or gone:
            raise Changed(Problem("kubernetes", f"{path} has changed meanwhile", "read it again"))
        if not 200 <= answer.status < 300:
            said = f"{method} {path} was answered with {answer.status}: {_message(answer.data)[:SAID_MAX]}"
            fix = REASONS.get(answer.status, "see what is wrong with the API server")
            raise DriverError(Problem("kubernetes", said, fix))
        return answer.data


def opened(url: str, namespace: str, deadline_s: float, environ: Mapping[str, str]) -> KubernetesApi:
    """Returns a client for the API server at `url`; without one for that of this pod's cluster.

    Without `namespace` it is this pod's. Raises `ConfigError` where there is neither.
    """
    inside = (ACCOUNT / "token").exists() and "KUBERNETES_SERVICE_HOST" in environ
    if not inside and not (url and namespace):
        what = "this is no pod with a service account, and controller.api and controller.namespace are not both given"
        fix = "run it as the chart's controller, or through kubectl proxy with api = 'http://127.0.0.1:8001'"
        raise ConfigError(Problem("controller.api", what, fix))
    namespace = namespace or (ACCOUNT / "namespace").read_text().strip()
    if url:
        return KubernetesApi(url, namespace, deadline_s)
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    return KubernetesApi(url, namespace, deadline_s, token=ACCOUNT / "token", authority=ACCOUNT / "ca.crt")


def _message(answer: bytes) -> str:
    try:
        return str(orjson.loads(answer)["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return answer.decode(errors="replace")
