"""`services`, started by itself: what the queue says last is kept for those who ask once the services have ended."""

from echo_queue.config import Config
from echo_queue.launch.servers import serve
from echo_queue.reporting import outcome


def serve_alone(config: Config) -> None:
    """Serves until SIGTERM. Whoever runs all roles (`run`) keeps the last answers itself, and needs none of this."""

    def forget_answers() -> None:
        if (end := outcome.read(config)) and end.early:
            outcome.forget(config)

    def keep_answers() -> None:
        from echo_queue.cli.run.end import keep_latest_answers  # whose imports would keep the start waiting

        keep_latest_answers(config)

    serve(config, once_ready=forget_answers, before_end=keep_answers)
