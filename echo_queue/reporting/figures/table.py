"""The one table of all figures, by subject. Whoever shows or exports a figure takes its name and meaning from here."""

from echo_queue.reporting.figures import learner_figures, queue_figures, task_figures, worker_figures
from echo_queue.reporting.figures.figure import Figure, Subject
from echo_queue.reporting.figures.queue_figures import UP

__all__ = ["FIGURES", "SUBJECTS", "UP"]

SUBJECTS: tuple[Subject, ...] = (
    queue_figures.RUN,
    queue_figures.PROMPTS,
    queue_figures.IDENTITY,
    learner_figures.TIMES,
    learner_figures.STALENESS,
    learner_figures.LEARNING,
    worker_figures.WORKERS,
    worker_figures.FLEET,
    task_figures.MIXTURE,
    task_figures.EVALUATION,
)
FIGURES: tuple[Figure, ...] = tuple(figure for subject in SUBJECTS for figure in subject.figures)
