"""A Celery application that its own settings alone configure.

Celery itself prefers variables such as `CELERY_BROKER_URL` to what an application says. A user has them for programs of
his own, whose server would get the run's messages. They stay as they are, since those programs may be in this process.
"""

from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.app.utils import Settings
from celery.loaders.app import AppLoader


class ExplicitLoader(AppLoader):  # type: ignore[misc]  # Celery has no types
    """A loader that imports no module of settings."""

    def read_configuration(self, env: str = "") -> dict[str, Any]:
        return {}


class ExplicitSettings(Settings):  # type: ignore[misc]
    """Celery's settings without those of its properties that read the environment first."""

    @property
    def broker_url(self) -> str:
        return str(self["broker_url"])

    @property
    def broker_read_url(self) -> str:
        return self.broker_url

    @property
    def broker_write_url(self) -> str:
        return self.broker_url

    @property
    def result_backend(self) -> str:
        return str(self["result_backend"])


def application(name: str, settings: Mapping[str, Any]) -> Celery:
    """Returns an application with these settings, whatever variables of Celery's and Django's are set."""
    app = Celery(name, loader=ExplicitLoader, fixups=(), set_as_current=False)
    # Celery fills this object in, and makes no other; an assignment to it would be a setting of that name.
    object.__setattr__(app.conf, "__class__", ExplicitSettings)
    app.conf.update(settings)
    return app
